// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// SimulatorOptions configure the simulated cloud. The zero value is valid.
type SimulatorOptions struct {
	// Dir is the folder for its log. By default it is a new folder, which Stop removes.
	Dir string
	// Token authenticates to the account "default". By default it is random.
	Token string
	// Args are appended to the command line of "drover simulate".
	Args []string
}

// Simulator is the simulated cloud as a process.
type Simulator struct {
	*Process
	// URL is its address, for the endpoint of a DroverAccount or for --simulated-endpoint.
	URL string
	// Token authenticates to the default account, for the key "token" of the credentials Secret.
	Token string

	dir string // to be removed by Stop, or ""
}

// StartSimulator runs "drover simulate" and returns once it serves. Like a real cloud, it outlives
// managers and management clusters: call Stop at the end.
func StartSimulator(ctx context.Context, opts SimulatorOptions) (_ *Simulator, err error) {
	program, err := BuildCommand(ctx)
	if err != nil {
		return nil, err
	}
	dir, own, err := folder(opts.Dir)
	if err != nil {
		return nil, err
	}
	s := &Simulator{Token: opts.Token}
	if own {
		s.dir = dir
	}
	if s.Token == "" {
		s.Token = rand.Text()
	}
	// The simulated cloud picks a free port by itself, and writes its address to a file once it
	// serves.
	address := filepath.Join(dir, "simulated-cloud.address")
	if err := os.Remove(address); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, s.end(fmt.Errorf("start the simulated cloud: %w", err))
	}
	s.Process, err = start(command{
		name: "simulated-cloud", path: program, dir: dir, env: []string{"TMPDIR=" + dir}, // the machines' disks go with it
		args: append([]string{"simulate", "--listen=127.0.0.1:0", "--address-file=" + address, "--token=" + s.Token}, opts.Args...),
	})
	if err != nil {
		return nil, s.end(err)
	}
	err = s.waitFor(ctx, "the simulated cloud serves", startDeadline, func(context.Context) error {
		raw, err := os.ReadFile(address)
		s.URL = strings.TrimSpace(string(raw))
		return err
	})
	if err != nil {
		return nil, s.end(fmt.Errorf("start the simulated cloud: %w", err))
	}
	return s, nil
}

// Stop ends the simulated cloud, and with it all its machines. It may be called twice.
func (s *Simulator) Stop() error { return s.end(nil) }

// end kills the process, removes the folder, and joins any failure to err.
func (s *Simulator) end(err error) error {
	if s.Process != nil {
		s.Kill()
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}
