// SPDX-License-Identifier: Apache-2.0

//go:build linux

package playground

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
)

// parentVariable makes the test program act as the parent that is killed.
const parentVariable = "DROVER_PLAYGROUND_PARENT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentVariable); dir != "" {
		parent(dir)
		return
	}
	os.Exit(m.Run())
}

// parent starts a control plane, prints the process IDs of its children, and waits to be killed.
func parent(dir string) {
	c, err := StartControlPlane(context.Background(), ControlPlaneOptions{Dir: dir})
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	fmt.Println(c.etcd.PID(), c.apiServer.PID(), c.controllerManager.PID())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func TestChildrenDieWithTheirParent(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	self, err := os.Executable()
	g.Expect(err).NotTo(HaveOccurred())
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), parentVariable+"="+t.TempDir())
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	g.Expect(err).NotTo(HaveOccurred())
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cmd.Start()).To(Succeed())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(line).NotTo(HavePrefix("failed"))

	g.Expect(cmd.Process.Kill()).To(Succeed())
	_ = cmd.Wait()
	for _, field := range strings.Fields(line) {
		pid, err := strconv.Atoi(field)
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func() bool { return running(pid) }, patience).Should(BeFalse(), "process %d outlived its parent", pid)
	}
}

// running reports whether a process exists and is no zombie: reaping orphans is not tested here.
func running(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	return !strings.HasPrefix(strings.TrimSpace(string(stat[strings.LastIndexByte(string(stat), ')')+1:])), "Z")
}
