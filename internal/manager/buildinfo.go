// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// NewBuildInfo returns the metric that tells which build runs. A release's build is given its
// commit, because it has no state of git in it; another has what Go has seen of git.
func NewBuildInfo(version, commit string) prometheus.Collector {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "drover_build_info",
		Help: "1, with the manager's version, the commit that it was built from (unknown if the build does not say it), and its version of Go.",
	}, []string{"version", "commit", "go"})
	info.WithLabelValues(version, cmp.Or(commit, vcsRevision(), "unknown"), runtime.Version()).Set(1)
	return info
}

func vcsRevision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			return setting.Value
		}
	}
	return ""
}
