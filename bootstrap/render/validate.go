// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// MaxBytes limits the total size of one config's files, commands and keys, before any encoding. A
// Secret holds 1 MiB, and encoding twice costs a factor of 16/9. Clouds accept less, commonly 16
// KiB, and their drivers report that.
const MaxBytes = 256 << 10

var (
	ownerPattern       = regexp.MustCompile(`^[a-z_][-a-z0-9_]*:[a-z_][-a-z0-9_]*$`)
	permissionsPattern = regexp.MustCompile(`^0[0-7]{3}$`)
)

// Validate checks what the CRD's schema can't. It also repeats the schema's checks, because user
// data must not be rendered from a spec that no schema has checked. It sends no request. UserData
// uses it. Its messages never contain contents of files, commands or keys, which may be secret.
func Validate(spec *bootstrapv1.DroverConfigSpec, at *field.Path) field.ErrorList {
	errs := ValidateExceptSystem(spec, at)
	if unknownSystem(spec) {
		var names []bootstrapv1.OperatingSystem
		for _, known := range systems() {
			names = append(names, known.name)
		}
		errs = append(errs, oneOf(spec.OperatingSystem, at.Child("operatingSystem"), names...)...)
		sortByField(errs)
	}
	return errs
}

// ValidateExceptSystem is Validate for webhooks: it accepts an operating system that Drover does
// not know, and then does not check what depends on the system. Each release knows other systems,
// and a webhook must not refuse the objects of machines that another release has set up, as in
// "clusterctl move".
func ValidateExceptSystem(spec *bootstrapv1.DroverConfigSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.NodeNameSource == bootstrapv1.NodeNameHostname && FormatOf(spec) == bootstrapv1.FormatIgnition {
		errs = append(errs, field.Invalid(at.Child("nodeNameSource"), spec.NodeNameSource,
			`needs format "CloudConfig": Ignition has no instance data`))
	}
	errs = append(errs, validateLabels(spec.NodeLabels, at.Child("nodeLabels"))...)
	errs = append(errs, validateTaints(spec.NodeTaints, at.Child("nodeTaints"))...)
	if spec.ClusterDNS != "" {
		if a, err := netip.ParseAddr(spec.ClusterDNS); err != nil || a.Zone() != "" {
			errs = append(errs, field.Invalid(at.Child("clusterDNS"), shorten(spec.ClusterDNS), "must be an IP address"))
		}
	}
	if spec.ClusterDomain != "" {
		for _, m := range validation.IsDNS1123Subdomain(spec.ClusterDomain) {
			errs = append(errs, field.Invalid(at.Child("clusterDomain"), shorten(spec.ClusterDomain), m))
		}
	}
	errs = append(errs, validateSystem(spec, at)...)
	errs = append(errs, validateInstall(&spec.Install, at.Child("install"))...)
	errs = append(errs, validateJoin(spec, at)...)
	errs = append(errs, validateKubelet(&spec.Kubelet, at.Child("kubelet"))...)
	errs = append(errs, validateContainerd(&spec.Containerd, at.Child("containerd"))...)
	errs = append(errs, validateHost(&spec.Host, at.Child("host"))...)
	errs = append(errs, validateFiles(spec.Files, at.Child("files"))...)
	errs = append(errs, validateCommands(spec.PreKubeletCommands, at.Child("preKubeletCommands"))...)
	errs = append(errs, validateCommands(spec.PostKubeletCommands, at.Child("postKubeletCommands"))...)
	errs = append(errs, validateKeys(spec.SSHAuthorizedKeys, at.Child("sshAuthorizedKeys"))...)
	if n := size(spec); n > MaxBytes {
		errs = append(errs, field.Invalid(at, n, fmt.Sprintf("files, commands and keys must not exceed %d bytes in all", MaxBytes)))
	}
	if len(errs) > 0 || unknownSystem(spec) {
		sortByField(errs)
		return errs
	}
	return validateOwnPaths(spec, at.Child("files"))
}

// sortByField gives errors a stable order, because a condition shows them.
func sortByField(errs field.ErrorList) {
	slices.SortStableFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
}

// ownPaths returns the paths of the files that the node has without the user's files, whether
// Drover or another program writes them.
func ownPaths(spec *bootstrapv1.DroverConfigSpec) []string {
	sample := spec.DeepCopy()
	sample.Files = nil
	const anyVersion = "1.36.0"
	n, err := describe(Input{Spec: sample, NodeName: "sample", Server: "https://sample", Version: anyVersion,
		ControlPlaneVersion: anyVersion}, nil)
	if err != nil {
		return nil // can't fail: the spec is valid
	}
	out := []string{
		BootstrapKubeconfigPath, CAPath, ClientCAPath, KubeletConfigPath, KubeletDefaultsPath, kubeletKubeconfigPath,
		kubeletSysconfigPath, kubeadmFlagsPath, configuredPath, filesConfigPath, filesWrittenPath, SentinelPath, LogPath,
		"/etc/hostname",
	}
	for _, f := range n.files {
		out = append(out, f.path)
	}
	for _, u := range n.units {
		out = append(out, unitFolder+u.name)
	}
	return out
}

// validateOwnPaths refuses user files with a path of the node's own files. Both would be written,
// and their order would decide.
func validateOwnPaths(spec *bootstrapv1.DroverConfigSpec, at *field.Path) field.ErrorList {
	if len(spec.Files) == 0 {
		return nil
	}
	var errs field.ErrorList
	own := ownPaths(spec)
	for i, f := range spec.Files {
		for _, p := range own {
			if f.Path == p || strings.HasPrefix(p, f.Path+"/") || strings.HasPrefix(f.Path, p+"/") {
				errs = append(errs, field.Forbidden(at.Index(i).Child("path"), "Drover writes "+p+" itself"))
				break
			}
		}
	}
	return errs
}

func validateLabels(labels map[string]string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	keys := make([]string, 0, len(labels))
	for k := range labels {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		for _, m := range validation.IsQualifiedName(k) {
			errs = append(errs, field.Invalid(at, shorten(k), m))
		}
		for _, m := range validation.IsValidLabelValue(labels[k]) {
			errs = append(errs, field.Invalid(at.Key(shorten(k)), shorten(labels[k]), m))
		}
		if why := forbiddenLabel(k); why != "" {
			errs = append(errs, field.Forbidden(at.Key(shorten(k)), why))
		}
	}
	return errs
}

// forbiddenLabel repeats the rules of the kubelet and the NodeRestriction admission plugin
// (k8s.io/kubernetes/plugin/pkg/admission/noderestriction and cmd/kubelet/app/options), so that
// users get an error here and not in the log of a kubelet that does not start.
func forbiddenLabel(key string) string {
	namespace, _, found := strings.Cut(key, "/")
	if !found {
		return ""
	}
	if namespace == corev1.LabelNamespaceNodeRestriction || strings.HasSuffix(namespace, "."+corev1.LabelNamespaceNodeRestriction) {
		return "a kubelet may not set this label on its own Node: put it on the Machine's metadata, and Cluster API sets it"
	}
	kubernetes := namespace == "kubernetes.io" || strings.HasSuffix(namespace, ".kubernetes.io") ||
		namespace == "k8s.io" || strings.HasSuffix(namespace, ".k8s.io")
	if kubernetes && !kubeletapis.IsKubeletLabel(key) {
		return "a kubelet may set only some labels of kubernetes.io and k8s.io on its own Node, and not this one: " +
			"put node-role.kubernetes.io labels on the Machine's metadata, and Cluster API sets them"
	}
	return ""
}

func validateTaints(taints []corev1.Taint, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, t := range taints {
		at := at.Index(i)
		for _, m := range validation.IsQualifiedName(t.Key) {
			errs = append(errs, field.Invalid(at.Child("key"), shorten(t.Key), m))
		}
		for _, m := range validation.IsValidLabelValue(t.Value) {
			errs = append(errs, field.Invalid(at.Child("value"), shorten(t.Value), m))
		}
		switch t.Effect {
		case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		default:
			errs = append(errs, field.NotSupported(at.Child("effect"), corev1.TaintEffect(shorten(string(t.Effect))), []corev1.TaintEffect{
				corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}))
		}
		if id := t.Key + ":" + string(t.Effect); seen[id] {
			errs = append(errs, field.Duplicate(at, shorten(id)))
		} else {
			seen[id] = true
		}
	}
	return errs
}

func validateFiles(files []bootstrapv1.File, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen, all := map[string]bool{}, map[string]bool{}
	for _, f := range files {
		all[f.Path] = true
	}
	for i, f := range files {
		at := at.Index(i)
		switch {
		case !plain(f.Path) || hasJinja(f.Path):
			errs = append(errs, field.Invalid(at.Child("path"), shorten(f.Path), "must be printable and without jinja's delimiters"))
		case !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/":
			errs = append(errs, field.Invalid(at.Child("path"), shorten(f.Path), "must be absolute, and without //, . and .."))
		case seen[f.Path]:
			errs = append(errs, field.Duplicate(at.Child("path"), shorten(f.Path)))
		default:
			for folder := path.Dir(f.Path); folder != "/"; folder = path.Dir(folder) {
				if all[folder] {
					errs = append(errs, field.Invalid(at.Child("path"), shorten(f.Path), "is below another file, "+shorten(folder)))
				}
			}
		}
		seen[f.Path] = true
		if f.Owner != "" && !ownerPattern.MatchString(f.Owner) {
			errs = append(errs, field.Invalid(at.Child("owner"), shorten(f.Owner), "must be user:group"))
		}
		if f.Permissions != "" && !permissionsPattern.MatchString(f.Permissions) {
			errs = append(errs, field.Invalid(at.Child("permissions"), shorten(f.Permissions), "must be four octal digits, the first 0"))
		}
		errs = append(errs, validateText(f.Content, at.Child("content"))...)
		if from := f.ContentFrom.Secret; from.Name != "" || from.Key != "" {
			if f.Content != "" {
				errs = append(errs, field.Forbidden(at.Child("contentFrom"), "give content or contentFrom, not both"))
			}
			for _, m := range validation.IsDNS1123Subdomain(from.Name) {
				errs = append(errs, field.Invalid(at.Child("contentFrom", "secret", "name"), shorten(from.Name), m))
			}
			for _, m := range validation.IsConfigMapKey(from.Key) {
				errs = append(errs, field.Invalid(at.Child("contentFrom", "secret", "key"), shorten(from.Key), m))
			}
		}
	}
	return errs
}

func validateCommands(commands []string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, c := range commands {
		if strings.TrimSpace(c) == "" {
			errs = append(errs, field.Required(at.Index(i), "a command must not be empty"))
		}
		errs = append(errs, validateText(c, at.Index(i))...)
	}
	return errs
}

func validateKeys(keys []string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, k := range keys {
		if !plain(k) || hasJinja(k) || strings.TrimSpace(k) == "" {
			errs = append(errs, field.Invalid(at.Index(i), "(not shown)", "must be one printable line without jinja's delimiters"))
		}
	}
	return errs
}

func validateText(s string, at *field.Path) field.ErrorList {
	if !utf8.ValidString(s) {
		return field.ErrorList{field.Invalid(at, "(not shown)", "must be valid UTF-8")}
	}
	if strings.ContainsRune(s, 0) {
		return field.ErrorList{field.Invalid(at, "(not shown)", "must not hold a zero byte")}
	}
	return nil
}

func size(spec *bootstrapv1.DroverConfigSpec) int {
	n := 0
	for _, f := range spec.Files {
		n += len(f.Path) + len(f.Content)
	}
	lists := [][]string{spec.PreKubeletCommands, spec.PostKubeletCommands, spec.SSHAuthorizedKeys, {spec.Host.CABundle}}
	for _, u := range spec.Host.Users {
		lists = append(lists, u.SSHAuthorizedKeys)
	}
	for _, list := range lists {
		for _, s := range list {
			n += len(s)
		}
	}
	if c := spec.Kubelet.Configuration; c != nil {
		n += len(c.Raw)
	}
	return n
}

// plain reports whether s is valid UTF-8 without control characters or line breaks.
func plain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

func hasJinja(s string) bool {
	return strings.Contains(s, "{{") || strings.Contains(s, "{%") || strings.Contains(s, "{#")
}

// shorten limits the length of input in messages, and makes it valid UTF-8.
func shorten(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if r := []rune(s); len(r) > 64 {
		return string(r[:64]) + "..."
	}
	return s
}
