// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
)

// SimulatorOptions say how to run the simulated cloud. The zero value serves.
type SimulatorOptions struct {
	// Binary is the drover program. By default it is built without the race detector.
	Binary string
	// Dir is where its log goes; by default a new folder, which Stop removes.
	Dir string
	// Args come last on the command line of "drover simulate".
	Args []string
}

// Simulator is the simulated cloud as a process.
type Simulator struct {
	*Process
	// URL is its address, for a CloudAccount's endpoint or --simulated-endpoint.
	URL string
	// Token opens its default account, for the credentials Secret's key "token".
	Token string

	dir string // to be removed in the end, or ""
}

// StartSimulator runs "drover simulate" and returns once it serves. It outlives managers and management clusters, as a
// cloud does: call Stop in the end.
func StartSimulator(ctx context.Context, opts SimulatorOptions) (_ *Simulator, err error) {
	if opts.Binary == "" {
		if opts.Binary, err = Build(ctx, false); err != nil {
			return nil, err
		}
	}
	dir, own, err := folder(opts.Dir)
	if err != nil {
		return nil, err
	}
	s := &Simulator{Token: "simulated-cloud-token"}
	if own {
		s.dir = dir
	}
	s.Process, err = onFreePorts(1, func(ports []int) (*Process, error) {
		s.URL = "http://" + local(ports[0])
		p, err := start(command{
			name: "simulated-cloud", path: opts.Binary, dir: dir,
			args: append([]string{"simulate", "--listen=" + local(ports[0])}, opts.Args...),
		})
		if err != nil {
			return nil, err
		}
		p.Health = s.URL
		return p, p.waitFor(ctx, "the simulated cloud serves", startDeadline, probe(http.DefaultClient, s.URL+"/healthz"))
	})
	if err != nil {
		return nil, fmt.Errorf("start the simulated cloud: %w", s.end(err))
	}
	return s, nil
}

// Stop ends the simulated cloud. All machines in it are gone then. It may be called twice.
func (s *Simulator) Stop() error { return s.end(nil) }

// end kills the process and removes the folder, and adds what fails to err.
func (s *Simulator) end(err error) error {
	if s.Process != nil {
		s.Kill()
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}
