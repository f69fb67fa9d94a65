// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/internal/test/playground"
)

var stay = flag.Bool("stay", false, "TestRehearsal leaves its clusters to you until Ctrl-C")

// TestRehearsal sets up machines of machine-controller-manager, and follows the page's commands as
// they are written, there and back and there again. With -stay, it leaves that to you.
func TestRehearsal(t *testing.T) {
	s := start(t, "blue", Pool{Name: "a", Replicas: 2, Labels: map[string]any{"pool": "a"}}, Pool{Name: "b", Replicas: 1})
	s.AWS.SetKeep(false)
	s.Old.Lease(time.Now().Add(-time.Hour)) // it was stopped
	bin := t.TempDir()                      // the program has another name with the race detector
	s.Do(os.Symlink(s.binary, filepath.Join(bin, "drover")))
	// What the page leaves to the reader.
	preparation := fmt.Sprintf(`export KUBECONFIG=%s PATH=%s:$PATH
flags="--namespace blue --cluster blue --bootstrap base --from %s --from-namespace %s --nodes %s --allow-endpoints 127.0.0.0/8"
`, s.kubeconfig, bin, s.kubeconfig, s.Old.namespace, s.nodes)
	if *stay {
		s.leave(preparation)
		return
	}
	g := NewWithT(t)
	before := s.Picture()
	run := func(step string) (out string) {
		t.Helper()
		command := s.written(step)
		printed, err := exec.CommandContext(s.Ctx, "bash", "-c", preparation+command).CombinedOutput()
		t.Logf("$ %s\n%s", command, printed)
		g.Expect(err).NotTo(HaveOccurred(), step)
		return string(printed)
	}
	for _, step := range []string{"plan", "stage", "check", "switch", "status", "rollback"} {
		run(step)
	}
	g.Expect(s.Picture()).To(Equal(before))
	run("stage")
	run("switch")
	g.Expect(run("commit")).To(ContainSubstring(`kubectl patch droveraccount -n blue blue --type merge -p '{"spec":{"orphanPolicy":"Delete"}}'`))
	s.Committed(before)
}

// written returns the page's command for a step.
func (s *Stage) written(step string) string {
	s.Helper()
	page, err := os.ReadFile("../../docs/migrate/" + s.Old.name + ".md")
	s.Do(err)
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "drover import "+s.Old.name+" "+step+" ") {
			return line
		}
	}
	s.Fatalf("the page has no command for %s", step)
	return ""
}

// leave prints what the reader of the page needs, and waits for Ctrl-C.
func (s *Stage) leave(preparation string) {
	s.Helper()
	tools, err := playground.FindTools(s.Ctx, os.Stderr, "kubectl")
	s.Do(err)
	fmt.Printf(`
Three machines run, on a stand-in for EC2. Their objects are machine-controller-manager's, in the namespace %s.
That program is not part of this; its Lease says that it was stopped an hour ago. From another terminal:

%salias kubectl=%s

kubectl -n %s get machinedeployments.machine.sapcloud.io,machines.machine.sapcloud.io
kubectl --kubeconfig %s get nodes

Then follow docs/migrate/machine-controller-manager.md, beginning with

%s
Watch the machines become Drover's: kubectl -n blue get machines.cluster.x-k8s.io,drovermachines
Ctrl-C ends it all.
`, s.Old.namespace, preparation, tools["kubectl"], s.Old.namespace, s.nodes, s.written("plan"))
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	<-interrupted
}
