// SPDX-License-Identifier: Apache-2.0

package body

import (
	"strings"
	"testing"

	"github.com/drover-io/drover/cloud/simulated/simulator/userdata"
)

func TestStartsKubelet(t *testing.T) {
	files := func(path string) (string, bool) {
		text, ok := map[string]string{
			"/join.sh":                         "#!/bin/sh\nset -eu\nif grep -q x y; then\n  exit 1\nfi\n/bin/sh -ec 'echo '\\''a'\\'''\nsystemctl enable --now kubelet\n",
			"/fail.sh":                         "#!/bin/sh\nset -eu\n/bin/sh -ec 'false'\nsystemctl enable --now kubelet\n",
			"/loop.sh":                         "/loop.sh\n",
			"/etc/systemd/system/join.service": "[Service]\nExecStart=/bin/sh /join.sh\n",
			"/etc/systemd/system/fail.service": "[Service]\nExecStart=/bin/sh /fail.sh\n",
		}[path]
		return text, ok
	}
	for line, want := range map[string]bool{
		"systemctl enable --now kubelet":                           true,
		"systemctl --now enable kubelet.service":                   true,
		"systemctl start kubelet":                                  true,
		"systemctl restart containerd kubelet":                     true,
		"sudo systemctl daemon-reload && systemctl start kubelet":  true,
		"sh -c 'systemctl start kubelet'":                          true,
		`bash -euo pipefail -c "sleep 1; systemctl start kubelet"`: true,
		"bash -o errexit /join.sh":                                 true,
		"/join.sh":                                                 true,
		". /join.sh":                                               true,
		"FOO=bar /join.sh >/dev/null":                              true,
		"if true; then systemctl start kubelet; fi":                true,
		"systemctl start kubelet || exit 1":                        true,
		"false; systemctl start kubelet":                           true,
		"if false; then exit 1; fi; systemctl start kubelet":       true,

		"systemctl start join":                true,
		"systemctl enable --now join.service": true,

		"":                                        false,
		"systemctl enable join":                   false,
		"systemctl start fail":                    false,
		"systemctl start missing":                 false,
		"systemctl enable kubelet":                false,
		"systemctl stop kubelet":                  false,
		"systemctl start containerd":              false,
		"# systemctl start kubelet":               false,
		"echo 'systemctl start kubelet'":          false,
		"true || systemctl start kubelet":         false,
		"exit 1; systemctl start kubelet":         false,
		"set -e; false; systemctl start kubelet":  false,
		"sh -ec 'false\nsystemctl start kubelet'": false,
		"/fail.sh":                                false,
		"/loop.sh":                                false,
		"/missing.sh":                             false,
		"sh -c":                                   false,
		"sh":                                      false,
	} {
		if got := follow(line, files).started; got != want {
			t.Errorf("%q: %t", line, got)
		}
	}
}

func FuzzCommands(f *testing.F) {
	f.Add(`a 'b c' "d\"e" \f; g || h && i | j & # k`)
	f.Add("sh -c 'sh -c \"systemctl start kubelet\"'\n")
	f.Fuzz(func(t *testing.T, script string) {
		for _, words := range commands(script) {
			if len(words) == 0 {
				t.Error("a command without words")
			}
		}
		follow(script, func(string) (string, bool) { return script, true })
	})
}

// TestJoins: only "kubeadm join" with a configuration file starts the kubelet by that file.
func TestJoins(t *testing.T) {
	for line, want := range map[string]string{
		"kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml  && echo success > /run/x": "/run/kubeadm/kubeadm-join-config.yaml",
		"sudo /usr/bin/kubeadm join --config=/a.yaml --v 5":                                     "/a.yaml",
		"bash -c 'set -e; kubeadm join --config /a.yaml'":                                       "/a.yaml",
		"set -e; false; kubeadm join --config /a.yaml":                                          "",
		"kubeadm join 127.0.0.1:6443":                                                           "",
		"kubeadm init --config /a.yaml":                                                         "",
		"echo kubeadm join --config /a.yaml":                                                    "",
	} {
		if got := follow(line, func(string) (string, bool) { return "", false }).join; got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// TestStartsControlPlane: "kubeadm init", and the join of a control plane, make a machine one of a
// control plane; the join of a worker does not.
func TestStartsControlPlane(t *testing.T) {
	t.Parallel()
	join := func(more string) userdata.File {
		return userdata.File{Content: []byte("apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\ndiscovery: {file: {kubeConfigPath: /k}}\n" + more)}
	}
	files := map[string]userdata.File{"/cp.yaml": join("controlPlane: {}\n"), "/worker.yaml": join("")}
	for command, want := range map[string]bool{
		"kubeadm init --config /cp.yaml && echo success":    true,
		"sh -c 'kubeadm init'":                              true,
		"kubeadm join --config /cp.yaml":                    true,
		"kubeadm join --config /worker.yaml":                false,
		"kubeadm join --config /missing.yaml":               false,
		"echo kubeadm init":                                 false,
		"systemctl start kubelet":                           false,
		"false || kubeadm init":                             false,
		"set -e; false; kubeadm init --config /worker.yaml": false,
	} {
		disk := userdata.Machine{Files: files, Commands: []string{command}}
		if got := startsControlPlane(disk, commanded(disk)); got != want {
			t.Errorf("%q: %t", command, got)
		}
	}
}

// TestFollowEnds: a script that calls itself is not followed for long, however it branches.
func TestFollowEnds(t *testing.T) {
	for _, script := range []string{
		strings.Repeat("sh /a.sh\n", 400), strings.Repeat("sh /a.sh; . /a.sh && bash /a.sh\n", 100), "if true; then\n" +
			strings.Repeat("sh /a.sh\n", 1000) + "fi",
	} {
		read := 0
		follow(script, func(string) (string, bool) { read++; return script, true })
		if read > maxSteps {
			t.Errorf("%d scripts were read, want at most %d", read, maxSteps)
		}
	}
}
