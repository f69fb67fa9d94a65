// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// gateway is this computer's address on each machine's link. Machines do not share a link, so
	// that it can be the same on all.
	gateway = "169.254.1.1"
	// setupTime bounds the setup of a machine's network.
	setupTime = 10 * time.Second
)

// Host is a machine. Its methods are safe for concurrent use. The zero value is not usable.
type Host struct {
	opts Options
	// work is done by the host's thread, which is in the machine's namespaces, as are the processes
	// that it starts.
	work   chan func()
	closed chan struct{} // by Close
	gone   chan struct{} // by the thread, when it ends
	close  sync.Once
}

// Open makes a machine's namespaces. The caller must close the Host.
func Open(ctx context.Context, o Options) (*Host, error) {
	h := &Host{opts: o, work: make(chan func()), closed: make(chan struct{}), gone: make(chan struct{})}
	ready := make(chan error, 1)
	go h.live(ctx, ready)
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("namespaces of machine %s: %w", o.Name, err)
	}
	return h, nil
}

// Close ends all processes of the machine. Nothing is left but its folder.
func (h *Host) Close() {
	h.close.Do(func() { close(h.closed) })
	<-h.gone
}

// live is the machine's thread. It is never unlocked, so that it ends with this function, and with
// it the machine's processes and namespaces.
func (h *Host) live(ctx context.Context, ready chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() { // the process's first thread: it would never end
		done := make(chan struct{})
		go func() { defer close(done); h.live(ctx, ready) }()
		<-done
		runtime.UnlockOSThread()
		return
	}
	err := h.enter(ctx)
	ready <- err
	for err == nil {
		select {
		case f := <-h.work:
			f()
		case <-h.closed:
			// The kernel removes the namespace's link some time later: too late for one that is
			// opened with the same address.
			_ = batch(context.WithoutCancel(ctx), "link del eth0")
			close(h.gone)
			return
		}
	}
}

// do runs a function on the machine's thread.
func (h *Host) do(f func() error) error {
	done := make(chan error, 1)
	select {
	case h.work <- func() { done <- f() }:
		return <-done
	case <-h.closed:
		return net.ErrClosed
	}
}

// enter moves the calling thread into new namespaces, and sets them up.
func (h *Host) enter(ctx context.Context) error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Sethostname([]byte(h.opts.Name)); err != nil {
		return fmt.Errorf("sethostname: %w", err)
	}
	if err := h.mount(); err != nil {
		return err
	}
	return h.connect(ctx)
}

// mount gives the machine its own view of the folders that it writes. What is in them on this
// computer is still there for reading, but for /run.
func (h *Host) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	for _, folder := range []string{"/etc", "/var", "/opt"} {
		upper, scratch := filepath.Join(h.opts.Dir, folder), filepath.Join(h.opts.Dir, "scratch", folder)
		for _, d := range []string{upper, scratch} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
		}
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", folder, upper, scratch)
		if err := unix.Mount("overlay", folder, "overlay", 0, options); err != nil {
			return fmt.Errorf("overlay on %s: %w", folder, err)
		}
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("tmpfs on /run: %w", err)
	}
	return nil
}

// connect links the machine's network with this computer's. Each has one route to the other, so
// that machines need no common network, and nothing is left when the namespace ends.
func (h *Host) connect(ctx context.Context) error {
	link := fmt.Sprintf("dv%d", unix.Gettid())
	inside := []string{
		fmt.Sprintf("link add eth0 type veth peer name %s netns %d", link, os.Getpid()),
		"addr add " + h.opts.IP + "/32 dev eth0",
		"link set lo up",
		"link set eth0 up",
		"route add " + gateway + " dev eth0",
		"route add default via " + gateway + " src " + h.opts.IP,
	}
	if err := batch(ctx, inside...); err != nil {
		return err
	}
	outside := make(chan error, 1)
	go func() { // on a thread that is not in the namespace
		err := batch(ctx, "addr add "+gateway+"/32 dev "+link, "link set "+link+" up", "route replace "+h.opts.IP+"/32 dev "+link)
		if err == nil {
			err = os.WriteFile("/proc/sys/net/ipv4/conf/"+link+"/forwarding", []byte("1"), 0)
		}
		outside <- err
	}()
	return <-outside
}

// Route makes all addresses of a network this computer's own, for everybody who reaches it, until
// the caller calls remove. Each call has a route with a metric of its own, so that others, also in
// other processes, keep theirs.
func Route(ctx context.Context, network string) (remove func(context.Context) error, err error) {
	route := fmt.Sprintf("local %s dev lo metric %d", network, 1+rand.Uint32N(math.MaxUint32))
	if err := batch(ctx, "route add "+route); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return batch(ctx, "route del "+route) }, nil
}

// batch runs commands of ip, in the namespace of the calling thread.
func batch(ctx context.Context, commands ...string) error {
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "ip", "-batch", "-")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(strings.Join(commands, "\n")+"\n"), &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("ip: %w: %s", err, strings.TrimSpace(said.String()))
	}
	return nil
}

// Run runs a program on the machine until it ends. It is killed, with all that it has started, when
// ctx ends or the Host is closed. env adds to the environment.
func (h *Host) Run(ctx context.Context, out io.Writer, env []string, args ...string) error {
	path := strings.Join(append(append([]string{}, h.opts.Path...), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin",
		"/bin"), ":")
	program, err := h.find(args[0])
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, args[1:]...)
	cmd.Env = append([]string{"PATH=" + path, "HOME=/root"}, env...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, "/"
	// A process namespace of its own ends with the program; the program ends with the thread.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := h.do(cmd.Start); err != nil {
		return err
	}
	return cmd.Wait()
}

// find returns a program's path: that in the machine's folders of programs, or on this computer.
func (h *Host) find(name string) (string, error) {
	for _, folder := range h.opts.Path {
		program := filepath.Join(folder, name)
		if _, err := os.Stat(program); err == nil && !strings.Contains(name, "/") {
			return program, nil
		}
	}
	return exec.LookPath(name)
}

// Listen listens on an address of the machine.
func (h *Host) Listen(address string) (l net.Listener, err error) {
	err = h.do(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	return l, err
}

// Dial connects to a port of the machine's own loopback address.
func (h *Host) Dial(ctx context.Context, port int32) (c net.Conn, err error) {
	err = h.do(func() (err error) { // at once: the machine itself accepts or refuses
		c, err = (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
		return err
	})
	return c, err
}

// ReadFile reads one of the machine's files.
func (h *Host) ReadFile(name string) (content []byte, err error) {
	err = h.do(func() (err error) {
		content, err = os.ReadFile(name)
		return err
	})
	return content, err
}

// ReadDir returns the sorted names in one of the machine's folders: none if it does not exist.
func (h *Host) ReadDir(name string) (names []string, err error) {
	err = h.do(func() error {
		entries, err := os.ReadDir(name)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return names, err
}

// WriteFile writes one of the machine's files, and makes its folders. The file appears whole.
func (h *Host) WriteFile(name string, content []byte, mode fs.FileMode) error {
	return h.do(func() error {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name+".new", content, mode); err != nil {
			return err
		}
		return os.Rename(name+".new", name)
	})
}
