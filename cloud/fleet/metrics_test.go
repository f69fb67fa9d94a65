// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"
)

// TestCallsInLog: the log has each call with --v=4, and none without. It is not parallel, because
// the log's level belongs to the process.
func TestCallsInLog(t *testing.T) {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(flags)
	defer klog.CaptureState().Restore()
	for _, c := range []struct {
		level string
		lines int
	}{{"3", 0}, {"4", 1}} {
		var log []string
		if err := flags.Set("v", c.level); err != nil {
			t.Fatal(err)
		}
		klog.SetLogger(funcr.New(func(_, line string) { log = append(log, line) }, funcr.Options{Verbosity: 4}))
		m := &meter{metrics: newMetrics(), cloud: "aws", account: "team-a/main"}
		m.call("RunInstances", "2xx", 1500*time.Millisecond)
		if len(log) != c.lines {
			t.Fatalf("--v=%s: the log says %q", c.level, log)
		}
		for _, line := range log {
			for _, want := range []string{`"account"="team-a/main"`, `"method"="RunInstances"`, `"code"="2xx"`, `"duration"="1.5s"`} {
				if !strings.Contains(line, want) {
					t.Errorf("%s is not in %s", want, line)
				}
			}
		}
	}
}
