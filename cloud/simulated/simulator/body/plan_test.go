// SPDX-License-Identifier: Apache-2.0

package body

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/drover-io/drover/cloud/simulated/simulator/userdata"
)

const kubeconfigText = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443", certificate-authority: /etc/kubernetes/pki/ca.crt}}]
users: [{name: u, user: {token: abcdef.0123456789abcdef}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

const configText = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
providerID: simulated:///a/b
serverTLSBootstrap: true
registerWithTaints: [{key: a, value: b, effect: NoSchedule}]
`

func goodFiles() map[string]string {
	return map[string]string{
		bootstrapKubeconfig:          kubeconfigText,
		kubeletConfigFile:            configText,
		"/etc/kubernetes/pki/ca.crt": "a certificate",
		"/etc/default/kubelet":       "# flags\nKUBELET_EXTRA_ARGS=\"--node-labels=pool=blue,node.kubernetes.io/a=b --hostname-override Node-1\"\n",
	}
}

func disk(files map[string]string, commands ...string) userdata.Machine {
	m := userdata.Machine{Files: map[string]userdata.File{}, Commands: commands}
	for name, text := range files {
		m.Files[name] = userdata.File{Content: []byte(text)}
	}
	return m
}

var testMachine = Machine{InstanceID: "i-1", Hostname: "host", IP: "10.0.0.1", Arch: "amd64", OS: "linux"}

func TestPlan(t *testing.T) {
	k, err := plan(disk(goodFiles(), "systemctl start kubelet"), testMachine)
	if err != nil {
		t.Fatal(err)
	}
	if k.node != "node-1" || k.server != "https://127.0.0.1:6443" || k.token != "abcdef.0123456789abcdef" || string(k.ca) != "a certificate" {
		t.Errorf("%+v", k)
	}
	if k.providerID != "simulated:///a/b" || !k.servingCSR || len(k.taints) != 1 || !k.registers || k.nodeIP != "10.0.0.1" {
		t.Errorf("%+v", k)
	}
	if k.labels["pool"] != "blue" || k.labels["kubernetes.io/hostname"] != "node-1" || k.labels["kubernetes.io/arch"] != "amd64" {
		t.Errorf("%v", k.labels)
	}
	files := goodFiles()
	files["/etc/default/kubelet"] = "KUBELET_EXTRA_ARGS=--provider-id=simulated:///x/y --register-with-taints=k=v:NoExecute,l:NoSchedule --node-ip=10.9.9.9\n"
	k, err = plan(disk(files, "systemctl start kubelet"), testMachine)
	if err != nil || k.providerID != "simulated:///x/y" || len(k.taints) != 2 || k.taints[0].Value != "v" || k.nodeIP != "10.9.9.9" ||
		k.node != "host" {
		t.Errorf("%v %+v", err, k)
	}
}

func TestPlanRefuses(t *testing.T) {
	for name, c := range map[string]struct{ file, text, want string }{
		"no kubeconfig":         {bootstrapKubeconfig, "", "there is no file"},
		"kubeconfig is none":    {bootstrapKubeconfig, "][", "is not a kubeconfig"},
		"kubeconfig, no token":  {bootstrapKubeconfig, strings.ReplaceAll(kubeconfigText, "token: abcdef.0123456789abcdef", ""), "no token"},
		"kubeconfig, no user":   {bootstrapKubeconfig, strings.ReplaceAll(kubeconfigText, "user: u", "user: v"), "no user"},
		"no config":             {kubeletConfigFile, "", "there is no file"},
		"config of another":     {kubeletConfigFile, "kind: Other\n", "it is"},
		"config, unknown field": {kubeletConfigFile, configText + "nothing: 1\n", "unknown field"},
		"config, no client CA":  {kubeletConfigFile, configText + "authentication: {x509: {clientCAFile: /none}}\n", "client CA"},
		"no CA":                 {"/etc/kubernetes/pki/ca.crt", "", "certificate authority"},
		"forbidden label":       {"/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--node-labels=node-role.kubernetes.io/worker=\n", "--node-labels"},
		"broken taint":          {"/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--register-with-taints=a=b\n", "invalid taint"},
	} {
		t.Run(name, func(t *testing.T) {
			files := maps.Clone(goodFiles())
			if files[c.file] = c.text; c.text == "" {
				delete(files, c.file)
			}
			_, err := plan(disk(files, "systemctl start kubelet"), testMachine)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if strings.Contains(err.Error(), "0123456789abcdef") {
				t.Fatal("the console shows the token")
			}
		})
	}
	if _, err := plan(disk(goodFiles(), "echo hello"), testMachine); !errors.Is(err, errNotStarted) {
		t.Fatalf("got %v", err)
	}
}
