// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"cmp"
	"encoding/base64"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	kubeadmv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// config maps the pool's KubeadmConfigTemplate.
func (m *CAPI) config(s findings, pool *Pool, target *Target) {
	const at, ref = "spec.template.spec", "spec.template.spec.bootstrap"
	template := pool.Deployment.Template.Spec.Bootstrap.ConfigRef
	if template.Kind != "KubeadmConfigTemplate" {
		s.addLost(ref, "only the DroverConfigTemplate says how new machines are set up, and nothing of %s %s",
			cmp.Or(template.Kind, "Secret"), cmp.Or(template.Name, ptr.Deref(pool.Deployment.Template.Spec.Bootstrap.DataSecretName, "")))
		return
	}
	i := slices.IndexFunc(m.Configs, func(o unstructured.Unstructured) bool { return o.GetName() == template.Name })
	if i < 0 {
		s.addRefused(ref, "KubeadmConfigTemplate %s does not exist", template.Name)
		return
	}
	about := s.plan.findingsFor("KubeadmConfigTemplate", template.Name)
	from, _, _ := unstructured.NestedMap(m.Configs[i].Object, "spec", "template")
	spec := &kubeadmv1.KubeadmConfigSpec{}
	if from["spec"] != nil && !about.decode(map[string]any{at: from["spec"]}, at, spec) {
		return
	}
	c := &pool.Config
	c.Format = kubeadmFormat(spec.Format)
	about.kubeadmFiles(c, spec.Files)
	c.PreKubeletCommands = about.kubeadmCommands(at+".preKubeadmCommands", spec.PreKubeadmCommands)
	c.PostKubeletCommands = about.kubeadmCommands(at+".postKubeadmCommands", spec.PostKubeadmCommands)
	about.kubeadmUsers(c, spec.Users)
	if ptr.Deref(spec.NTP.Enabled, true) {
		c.Host.NTPServers = spec.NTP.Servers
	}
	about.kubeadmJoin(pool, &spec.JoinConfiguration, target)
	about.judge(pool, target)
	for field, given := range map[string]bool{
		"diskSetup": spec.DiskSetup.IsDefined(), "mounts": len(spec.Mounts) > 0, "bootCommands": len(spec.BootCommands) > 0,
		"ignition": spec.Ignition.IsDefined(),
	} {
		if given {
			about.addLost(at+"."+field, "new machines do without, unless a command of the DroverConfigTemplate does it")
		}
	}
	if spec.Verbosity != nil {
		about.addNote(at+".verbosity", "it is kubeadm's: Drover does not set it")
	}
	if spec.ClusterConfiguration.IsDefined() || spec.InitConfiguration.IsDefined() {
		about.addNote(at, "clusterConfiguration and initConfiguration are for control planes: workers ignore them, here as there")
	}
}

// kubeadmFormat maps the format of user data. One that Drover does not know stays, and is refused.
func kubeadmFormat(format kubeadmv1.Format) bootstrapv1.Format {
	switch format {
	case kubeadmv1.CloudConfig:
		return bootstrapv1.FormatCloudConfig
	case kubeadmv1.Ignition:
		return bootstrapv1.FormatIgnition
	}
	return bootstrapv1.Format(format)
}

// jinja reports whether the bootstrap provider lets cloud-init fill in a text. Drover's texts mean
// what they say.
func jinja(text string) bool { return strings.Contains(text, "{{") || strings.Contains(text, "{%") }

// needsKubeadm finds commands that fail where kubeadm did not run: they use the files with which
// Cluster API's provider runs it, or run a part of it. A command that fails ends a machine's setup.
var needsKubeadm = regexp.MustCompile(`/etc/kubeadm\.ya?ml|/(var/)?run/kubeadm\b|/tmp/kubeadm|\bkubeadm(\.sh)?\s+(join|init|reset|certs|config|token|upgrade|-)`)

func (s findings) kubeadmCommands(field string, from []string) (commands []string) {
	for _, command := range from {
		if strings.TrimSpace(command) == "" {
			continue // it does nothing, and Drover refuses it
		}
		if jinja(command) {
			s.addLost(field, "new machines do not run those with a template of cloud-init, {{…}}")
			continue
		}
		if at := needsKubeadm.FindStringIndex(command); at != nil {
			s.addLost(field, "new machines do not run %q: it is for kubeadm, or for files with which Cluster API runs it, and there are none",
				lineAt(command, at[0]))
			continue
		}
		if at := strings.Index(command, "kubeadm"); at >= 0 {
			s.addNote(field, "new machines run %q, which names kubeadm: if it fails, they do not join", lineAt(command, at))
		}
		commands = append(commands, command)
	}
	return commands
}

// lineAt returns the line of a command that has the byte at an index.
func lineAt(command string, index int) string {
	rest, _, _ := strings.Cut(command[index:], "\n")
	return strings.TrimSpace(command[strings.LastIndex(command[:index], "\n")+1:index] + rest)
}

func (s findings) kubeadmFiles(c *bootstrapv1.DroverConfigSpec, files []kubeadmv1.File) {
	const at = "spec.template.spec.files"
	for _, f := range files {
		file := bootstrapv1.File{Path: f.Path, Content: f.Content, Permissions: f.Permissions, Owner: f.Owner}
		if f.Encoding == kubeadmv1.Base64 {
			data, err := base64.StdEncoding.DecodeString(f.Content)
			if err != nil {
				s.addRefused(at+".content", "that of %s is not in base64: %s", f.Path, err)
				continue
			}
			file.Content = string(data)
		}
		switch {
		case f.Encoding != "" && f.Encoding != kubeadmv1.Base64:
			s.addLost(at+".encoding", "new machines do not get %s, which is compressed", f.Path)
			continue
		case ptr.Deref(f.Append, false):
			s.addLost(at+".append", "new machines do not get what is appended to %s", f.Path)
			continue
		case f.Encoding == kubeadmv1.Base64 && f.ContentFrom.Secret.Name != "":
			s.addLost(at+".encoding", "new machines do not get %s: Drover writes a Secret's value as it is: "+
				"decode it in the copy, and put the file into the DroverConfigTemplate", f.Path)
			continue
		case f.ContentFormat == kubeadmv1.FileContentFormatTemplate, f.Encoding == "" && jinja(f.Content):
			s.addLost(at+".content", "new machines do not get %s, which is a template", f.Path)
			continue
		}
		if secret := f.ContentFrom.Secret; secret.Name != "" {
			s.addNote(at+".contentFrom", "copy Secret %s into the new Cluster's namespace, with the label %s", secret.Name,
				bootstrapv1.MachineSecretLabel)
			file.ContentFrom = bootstrapv1.FileSource{Secret: bootstrapv1.SecretKey{Name: secret.Name, Key: secret.Key}}
		}
		c.Files = append(c.Files, file)
	}
}

func (s findings) kubeadmUsers(c *bootstrapv1.DroverConfigSpec, users []kubeadmv1.User) {
	for _, u := range users {
		keys := slices.DeleteFunc(slices.Clone(u.SSHAuthorizedKeys), func(key string) bool { return strings.TrimSpace(key) == "" })
		user := bootstrapv1.User{Name: u.Name, SSHAuthorizedKeys: keys}
		if strings.Contains(u.Sudo, "ALL") {
			user.Sudo = bootstrapv1.SudoAllowed
		}
		if u.Gecos+u.Groups+u.HomeDir+u.Shell+u.Passwd+u.PasswdFrom.Secret.Name+u.PrimaryGroup != "" || u.Inactive != nil ||
			!ptr.Deref(u.LockPassword, true) {
			s.addLost("spec.template.spec.users", "on new machines, user %s has only keys and sudo", u.Name)
		}
		c.Host.Users = append(c.Host.Users, user)
	}
}

// kubeadmName maps the name of a Node. cloud-init's own names are those of its instance data: the
// short name is v1.local_hostname, and ds.meta_data has what the cloud says.
func (s findings) kubeadmName(c *bootstrapv1.DroverConfigSpec, field, name string, target *Target) {
	if name == "" {
		return
	}
	variable := strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(name), "{{"), "}}"))
	variable = strings.ReplaceAll(variable, "-", "_")
	short := variable == "local_hostname" || variable == "v1.local_hostname"
	switch {
	case target.Account.Spec.Cloud.OpenStack != nil && (short || variable == "ds.meta_data.name"):
		c.NodeNameSource = bootstrapv1.NodeNameMachine // as the server; Hostname has the domain of Nova
	case target.Account.Spec.Cloud.OpenStack != nil && jinja(name):
		c.NodeNameSource = bootstrapv1.NodeNameMachine
		s.addLost(field, "new Nodes have the name of their Machine, without a domain: OpenStack does not say by which other name it knows a server")
	case variable == "ds.meta_data.local_hostname":
		c.NodeNameSource = bootstrapv1.NodeNameHostname
	case short:
		c.NodeNameSource = bootstrapv1.NodeNameHostname
		s.addLost(field, "new Nodes have the name that AWS gives their VM, with its domain, and not the short one")
	default:
		s.addLost(field, "new Nodes have the name of their Machine, or what nodeNameSource of the DroverConfigTemplate says")
	}
}

// kubeadmJoin maps how a machine joins.
func (s findings) kubeadmJoin(pool *Pool, join *kubeadmv1.JoinConfiguration, target *Target) {
	const at = "spec.template.spec.joinConfiguration."
	const registration = at + "nodeRegistration."
	node, c := &join.NodeRegistration, &pool.Config
	s.kubeadmName(c, registration+"name", node.Name, target)
	pool.NodeTaints = append(pool.NodeTaints, ptr.Deref(node.Taints, nil)...)
	c.Join.IgnorePreflightErrors = node.IgnorePreflightErrors
	for _, arg := range node.KubeletExtraArgs {
		value := ptr.Deref(arg.Value, "")
		switch arg.Name {
		case "provider-id": // Drover says it, too
		case "cloud-provider": // the flag adds this taint, and Drover's kubelets do not have the flag
			if value == "external" {
				pool.NodeTaints = append(pool.NodeTaints, corev1.Taint{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true",
					Effect: corev1.TaintEffectNoSchedule})
			}
		case "node-labels":
			labels := map[string]string{}
			for label := range strings.SplitSeq(value, ",") {
				if key, to, _ := strings.Cut(strings.TrimSpace(label), "="); key != "" {
					labels[key] = to
				}
			}
			s.nodeLabels(pool, registration+"kubeletExtraArgs", labels)
		case "max-pods":
			n, err := strconv.ParseInt(value, 10, 32)
			if err != nil {
				s.addRefused(registration+"kubeletExtraArgs", "max-pods is no number: %q", value)
			}
			c.Kubelet.MaxPods = int32(n)
		default:
			s.addLost(registration+"kubeletExtraArgs", "new kubelets do not get --%s, unless kubelet of the DroverConfigTemplate says so", arg.Name)
		}
	}
	if node.CRISocket != "" && !strings.Contains(node.CRISocket, "containerd") {
		s.addLost(registration+"criSocket", "new machines use containerd")
	}
	if node.ImagePullPolicy != "" || node.ImagePullSerial != nil {
		s.addNote(registration+"imagePullPolicy", "kubeadm pulls no images for workers")
	}
	if len(join.SkipPhases) > 0 {
		s.addLost(at+"skipPhases", "new machines skip none")
	}
	if join.Patches.Directory != "" {
		s.addLost(at+"patches", "new machines patch nothing")
	}
	if join.CACertPath != "" || !equality.Semantic.DeepEqual(join.Discovery, kubeadmv1.Discovery{}) ||
		!equality.Semantic.DeepEqual(join.Timeouts, kubeadmv1.Timeouts{}) {
		s.addNote(at+"discovery", "Drover makes what new machines join with")
	}
	if join.ControlPlane != nil {
		s.addRefused(at+"controlPlane", "it is for a control plane")
	}
}
