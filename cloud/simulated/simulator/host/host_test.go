// SPDX-License-Identifier: Apache-2.0

//go:build linux

package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// open opens a machine, or skips the test where there can be none.
func open(t *testing.T, name, ip, dir string) *Host {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("the program ip of iproute2 is missing")
	}
	h, err := Open(t.Context(), Options{Name: name, IP: ip, Dir: dir})
	if errors.Is(err, unix.EPERM) {
		t.Skip("namespaces need root: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// TestMachines: machines have names, addresses, loopback addresses and files of their own, and
// reach each other and this computer. What they run ends with them, and their disks stay.
func TestMachines(t *testing.T) {
	disk := t.TempDir()
	// Another process on this computer may run this test, too.
	network := fmt.Sprintf("100.126.%d.", rand.IntN(256))
	first, second := network+fmt.Sprint(2*rand.IntN(128)), network+fmt.Sprint(2*rand.IntN(128)+1)
	one, two := open(t, "one", first, disk), open(t, "two", second, t.TempDir())
	run := func(h *Host, script string) string {
		var out bytes.Buffer
		if err := h.Run(t.Context(), &out, []string{"GREETING=hello"}, "sh", "-c", script); err != nil {
			t.Fatalf("%s: %v: %s", script, err, out.String())
		}
		return strings.TrimSpace(out.String())
	}
	if got := run(one, "hostname; echo $GREETING; echo mine > /etc/drover-test"); got != "one\nhello" {
		t.Errorf("%q", got)
	}
	if _, err := os.Stat("/etc/drover-test"); err == nil {
		t.Error("the machine's file is on this computer")
	}
	if _, err := two.ReadFile("/etc/drover-test"); !os.IsNotExist(err) {
		t.Errorf("the machine's file is on the other machine: %v", err)
	}
	if err := two.WriteFile("/etc/kubernetes/a/b", []byte("b"), 0o600); err != nil {
		t.Fatal(err)
	}
	if names, err := two.ReadDir("/etc/kubernetes/a"); err != nil || strings.Join(names, " ") != "b" {
		t.Errorf("%v %v", names, err)
	}

	for _, at := range []string{"127.0.0.1:7000", first + ":7001"} {
		l, err := one.Listen(at)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
				_, _ = io.WriteString(c, host)
				_ = c.Close()
			}
		}()
		defer func() { _ = l.Close() }()
	}
	if c, err := one.Dial(t.Context(), 7000); err != nil {
		t.Error(err)
	} else {
		_ = c.Close()
	}
	if _, err := two.Dial(t.Context(), 7000); err == nil {
		t.Error("the other machine has the same loopback address")
	}
	if c, err := net.DialTimeout("tcp", first+":7001", 10*time.Second); err != nil {
		t.Errorf("this computer: %v", err)
	} else {
		_ = c.Close()
	}
	if got := run(two, "bash -c 'cat < /dev/tcp/"+first+"/7001'"); got != second {
		t.Errorf("the other machine is seen as %q", got)
	}

	ended := make(chan error, 1)
	go func() { ended <- one.Run(context.Background(), io.Discard, nil, "sh", "-c", "sleep 1000 & sleep 1000") }()
	time.Sleep(100 * time.Millisecond)
	one.Close()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the program ended by itself")
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the program goes on without its machine")
	}
	if _, err := one.ReadFile("/etc/drover-test"); err == nil {
		t.Error("a machine that is off reads files")
	}
	again := open(t, "one", first, disk)
	if content, err := again.ReadFile("/etc/drover-test"); err != nil || string(content) != "mine\n" {
		t.Errorf("%q %v", content, err)
	}
}

// TestRoutes: a network is this computer's own until the last of its routes is removed.
func TestRoutes(t *testing.T) {
	open(t, "routes", "100.126.0.1", t.TempDir()) // or skip
	network := fmt.Sprintf("100.125.%d.", rand.IntN(256))
	listen := func() error {
		l, err := net.Listen("tcp", network+"1:0")
		if err == nil {
			err = l.Close()
		}
		return err
	}
	var removes []func(context.Context) error
	for range 2 {
		remove, err := Route(t.Context(), network+"0/24")
		if err != nil {
			t.Fatal(err)
		}
		removes = append(removes, remove)
	}
	for _, remove := range removes {
		if err := listen(); err != nil {
			t.Fatal(err)
		}
		if err := remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := listen(); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("the route was not removed: %v", err)
	}
}
