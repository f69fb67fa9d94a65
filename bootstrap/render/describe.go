// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"errors"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// The files of a node. The first five are used if the kubelet joins without kubeadm, the others
// always.
const (
	// BootstrapKubeconfigPath holds the kubeconfig with the bootstrap token. kubeadm's kubelet unit
	// reads it.
	BootstrapKubeconfigPath = "/etc/kubernetes/bootstrap-kubelet.conf"
	// CAPath holds the cluster's CA.
	CAPath = "/etc/kubernetes/pki/ca.crt"
	// ClientCAPath holds the authority of the API server's client certificate, if that is not
	// CAPath.
	ClientCAPath = "/etc/kubernetes/pki/client-ca.crt"
	// KubeletConfigPath holds the KubeletConfiguration.
	KubeletConfigPath = "/var/lib/kubelet/config.yaml"
	// KubeletDefaultsPath holds the kubelet's flags. This file and JoinConfigPath are not encoded
	// in a cloud-config, because they may contain instance-data variables.
	KubeletDefaultsPath = "/etc/default/kubelet"
	// ScriptPath holds the script that does the remaining setup.
	ScriptPath = "/etc/kubernetes/drover-bootstrap.sh"
	// LogPath is the log of the script and of all its commands.
	LogPath = "/var/log/drover-bootstrap.log"
	// SentinelPath exists when everything has succeeded. Cluster API's contract defines it.
	SentinelPath = "/run/cluster-api/bootstrap-success.complete"

	beforeKubelet        = "Running the commands before the kubelet"
	kubeletSysconfigPath = "/etc/sysconfig/kubelet"
	unitFolder           = "/etc/systemd/system/"
	bootstrapUnit        = "drover-bootstrap.service"
)

// node describes a machine that becomes a node. The order in all lists matters.
type node struct {
	hostname string
	// keys are SSH keys for the image's default user.
	keys  []string
	users []bootstrapv1.User
	files []file
	units []unit
	steps []step
}

type file struct {
	path, content string
	// permissions are octal; empty means "0644".
	permissions string
	// owner is "user:group"; empty means root.
	owner string
	// template: content may contain cloud-init's variables.
	template bool
}

func (f file) mode() string { return cmp.Or(f.permissions, "0644") }

// unit is a systemd unit file. The script enables it, except the unit that runs the script.
type unit struct{ name, content string }

// step is a part of the script, with the name that the log shows.
type step struct {
	name  string
	lines []string
}

func (n *node) add(files ...file) { n.files = append(n.files, files...) }

func (n *node) do(name string, lines ...string) { n.steps = append(n.steps, step{name, lines}) }

// filesWrittenPath is the last file that cloud-init writes. At the first file that it can't write,
// it leaves out all later ones, says so in its log, and goes on to run the script.
const filesWrittenPath = "/etc/kubernetes/drover-files-written"

// describe returns the description of a node. The input was checked. later is as in userDataOf.
func describe(in Input, later []byte) (*node, error) {
	files, join := kubeletFiles, (*node).startKubelet
	if joinsByKubeadm(in.Spec) {
		files, join = kubeadmFiles, (*node).runKubeadm
	}
	n := &node{keys: in.Spec.SSHAuthorizedKeys, users: in.Spec.Host.Users}
	if in.NodeName != hostVariable {
		n.hostname = in.NodeName
	}
	own, err := files(in)
	if err != nil {
		return nil, err
	}
	n.add(own...)
	n.checkInstanceData()
	n.host(in)
	if later != nil {
		n.fetchFiles(in, later)
	}
	checked := later == nil && len(in.Spec.Files) > 0 && FormatOf(in.Spec) == bootstrapv1.FormatCloudConfig
	if checked {
		n.do("Checking the files", "if [ ! -e "+filesWrittenPath+" ]; then",
			"  say 'cloud-init could not write a file of this machine, and wrote none after it: see /var/log/cloud-init.log'",
			"  exit 1",
			"fi")
	}
	n.owners(in)
	n.install(in)
	n.containerd(in)
	join(n, in)
	n.commands("Running the commands after the kubelet", in.Spec.PostKubeletCommands)
	n.units = append(n.units, unit{bootstrapUnit, bootstrapUnitText})
	n.add(file{path: ScriptPath, permissions: "0700", content: n.script()})
	if later == nil {
		n.add(userFiles(in)...)
	}
	if checked {
		n.add(file{path: filesWrittenPath})
	}
	return n, nil
}

// kubeletFiles returns the files that a kubelet uses to join without kubeadm.
func kubeletFiles(in Input) ([]file, error) {
	kubeconfig, err := bootstrapKubeconfig(in)
	if err != nil {
		return nil, err
	}
	config, err := kubeletConfig(in)
	if err != nil {
		return nil, err
	}
	out := []file{
		{path: BootstrapKubeconfigPath, permissions: "0600", content: string(kubeconfig)},
		{path: CAPath, content: string(in.CA)},
		{path: KubeletConfigPath, content: string(config)},
		{path: KubeletDefaultsPath, content: kubeletDefaults(in), template: true},
	}
	if in.clientCAPath() == ClientCAPath {
		out = append(out, file{path: ClientCAPath, content: string(in.ClientCA)})
	}
	return out, nil
}

// checkInstanceData makes the script exit if cloud-init could not fill in the variables of a file.
func (n *node) checkInstanceData() {
	for _, f := range n.files {
		if f.template && strings.Contains(f.content, "{{") {
			n.do("Checking the instance data", "if grep -q CI_MISSING_JINJA_VAR "+f.path+"; then",
				"  say 'cloud-init does not know the instance data that the provider ID or the name of the Node is made of'",
				"  exit 1",
				"fi")
		}
	}
}

func userFiles(in Input) []file {
	var out []file
	for _, f := range in.Spec.Files {
		content := f.Content
		if f.ContentFrom.Secret.Name != "" {
			content = string(in.Secrets[f.ContentFrom.Secret])
		}
		owner := f.Owner
		if owner == "root:root" {
			owner = ""
		}
		out = append(out, file{path: f.Path, content: content, permissions: f.Permissions, owner: owner})
	}
	return out
}

// owners gives the user's files to their owners. A missing user or group ends the script. Ignition
// sets owners itself, when it has made the users.
func (n *node) owners(in Input) {
	var lines []string
	for _, f := range userFiles(in) {
		if f.owner == "" || FormatOf(in.Spec) == bootstrapv1.FormatIgnition {
			continue
		}
		lines = append(lines, "chown "+quote(f.owner)+" "+quote(f.path))
	}
	if len(lines) > 0 {
		n.do("Setting the owners of files", lines...)
	}
}

// commands runs each user command in its own shell, so that an unclosed quote, an exit or a changed
// option in one can't skip the next.
func (n *node) commands(name string, commands []string) {
	if len(commands) == 0 {
		return
	}
	lines := make([]string, len(commands))
	for i, c := range commands {
		lines[i] = "/bin/sh -ec " + quote(c)
	}
	n.do(name, lines...)
}

func bootstrapKubeconfig(in Input) ([]byte, error) {
	const name = "bootstrap"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: in.Server, CertificateAuthorityData: in.CA}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: in.Token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	out, err := clientcmd.Write(*config)
	if err != nil {
		return nil, errors.New("writing the bootstrap kubeconfig failed")
	}
	return out, nil
}
