// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Process is a child process. Its output goes to a file. Errors quote the end of that file.
type Process struct {
	// Name is the name of the process in errors.
	Name string
	// Log is the file with its standard output and standard error.
	Log string
	// Health is the base URL of its /healthz and /readyz, if it has one.
	Health string
	// Metrics is the URL of its metrics, if it has one.
	Metrics string

	cmd  *exec.Cmd
	done chan struct{} // closed once the process has ended; err is set before
	err  error
}

// lazyGC makes the busiest third-party programs collect garbage less often, at the cost of memory,
// because they share few cores with the tested code. Near 4 GiB they collect as usual. With 2 GiB
// they collected all the time for a fleet of 3,000 machines.
var lazyGC = []string{"GOGC=400", "GOMEMLIMIT=4GiB"}

// command describes a program for start.
type command struct {
	name string   // of the process and its log
	path string   // of the program
	args []string // without the program's name
	dir  string   // its working directory, which also gets the log
	env  []string // in addition to the parent's
}

// Run runs a program as a child process in the folder dir. The folder gets its log, named name with
// ".log". env is added to this process's environment. The child ends when this process ends,
// however it ends.
func Run(name, dir string, env []string, path string, args ...string) (*Process, error) {
	return start(command{name: name, path: path, dir: dir, env: env, args: args})
}

// start starts a program and returns at once. Use waitFor to wait until the program works.
func start(c command) (*Process, error) {
	log, err := os.OpenFile(filepath.Join(c.dir, c.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", c.name, err)
	}
	p := &Process{Name: c.name, Log: log.Name(), cmd: exec.Command(c.path, c.args...), done: make(chan struct{})}
	p.cmd.Dir = c.dir
	p.cmd.Env = append(os.Environ(), c.env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = childAttributes()

	started := make(chan error)
	go func() {
		// The kernel kills a child when the *thread* that created it ends (see childAttributes), so
		// this thread is kept for as long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	return p, nil
}

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed once the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits until the process has ended. It returns nil for exit code 0, otherwise an error that
// quotes the end of the log.
func (p *Process) Wait() error {
	<-p.done
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("%s ended: %w%s", p.Name, p.err, p.quoteLog())
}

// Kill ends the process and its children at once, as a crash does (SIGKILL), and waits until the
// process is gone.
func (p *Process) Kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// Stop asks the process to end (SIGTERM) and waits for it. If the process does not end within
// grace, Stop kills it and returns an error. A nonzero exit code is an error too.
func (p *Process) Stop(grace time.Duration) error {
	p.signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return p.Wait()
	case <-timer.C:
		p.Kill()
		return fmt.Errorf("%s did not end within %s of SIGTERM%s", p.Name, grace, p.quoteLog())
	}
}

// Signal sends a signal to the process and its children, for example SIGSTOP to freeze it and
// SIGCONT to continue it.
func (p *Process) Signal(s syscall.Signal) { p.signal(s) }

// signal signals the whole process group. It ignores a group that is gone.
func (p *Process) signal(s syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = syscall.Kill(-p.PID(), s)
	}
}

// waitFor calls probe until it returns nil. It fails when the process ends, when ctx is done, or
// after the deadline.
func (p *Process) waitFor(ctx context.Context, what string, deadline time.Duration, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("wait until %s: %w", what, errors.Join(p.Wait(), errEnded))
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w (last answer: %w)%s", what, ctx.Err(), err, p.quoteLog())
		case <-tick.C:
		}
	}
}

// errEnded marks the error of a process that ended while waitFor was waiting for it.
var errEnded = errors.New("it was still being waited for")

// portTaken reports whether the process ended because its port was already in use.
func (p *Process) portTaken() bool {
	select {
	case <-p.done:
		return strings.Contains(p.tail(), "address already in use")
	default:
		return false
	}
}

// quoteLog returns the end of the log as part of an error.
func (p *Process) quoteLog() string {
	return fmt.Sprintf("\n--- the end of %s:\n%s\n---", p.Log, p.tail())
}

// tail returns the last lines of the log, with long lines truncated.
func (p *Process) tail() string {
	const lines, width, window = 12, 400, 16 << 10
	f, err := os.Open(p.Log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-window), io.SeekStart)
	}
	raw, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	all = all[max(0, len(all)-lines):]
	for i, l := range all {
		all[i] = l[:min(len(l), width)]
	}
	return string(bytes.Join(all, []byte("\n")))
}
