// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

var (
	userPattern     = regexp.MustCompile(`^[a-z_][-a-z0-9_]{0,31}$`)
	proxyPattern    = regexp.MustCompile(`^https?://[A-Za-z0-9._~%:@\[\]-]+/?$`)
	noProxyPattern  = regexp.MustCompile(`^[A-Za-z0-9._:/*-]{1,253}$`)
	sysctlPattern   = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_./-]*[A-Za-z0-9_])?$`)
	modulePattern   = regexp.MustCompile(`^[A-Za-z0-9_-]{1,63}$`)
	serverPattern   = regexp.MustCompile(`^[A-Za-z0-9:]([A-Za-z0-9.:-]{0,252})$`)
	mirrorPattern   = regexp.MustCompile(`^https?://[A-Za-z0-9._~:/\[\]-]+$`)
	registryPattern = regexp.MustCompile(`^(_default|[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?(:[0-9]{1,5})?)$`)
	imagePattern    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}$`)
	sha256Pattern   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	releasePattern  = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[a-z0-9.]+)?$`)
	packagePattern  = regexp.MustCompile(`^[0-9]+\.[0-9]+(\.[0-9]+)?$`)
	gatePattern     = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,127}$`)
	signalPattern   = regexp.MustCompile(`^[A-Za-z]+\.[A-Za-z]+$`)
	checkPattern    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$`)
	percentPattern  = regexp.MustCompile(`^[0-9]{1,3}(\.[0-9]+)?%$`)
)

// match returns an error if s is set and does not match. Apart from proxies, it checks no secret.
func match(s string, pattern *regexp.Regexp, at *field.Path, message string) field.ErrorList {
	if s == "" || pattern.MatchString(s) {
		return nil
	}
	return field.ErrorList{field.Invalid(at, shorten(s), message)}
}

// oneOf returns an error if s is set and is none of the values.
func oneOf[T ~string](s T, at *field.Path, values ...T) field.ErrorList {
	if s == "" || slices.Contains(values, s) {
		return nil
	}
	return field.ErrorList{field.NotSupported(at, T(shorten(string(s))), values)}
}

// validateSystem checks what depends on the operating system: its mode of installation, its format,
// and the settings that differ by system.
func validateSystem(spec *bootstrapv1.DroverConfigSpec, at *field.Path) field.ErrorList {
	if unknownSystem(spec) {
		return nil
	}
	var errs field.ErrorList
	s := systemOf(spec)
	errs = append(errs, oneOf(spec.Format, at.Child("format"), bootstrapv1.FormatCloudConfig, bootstrapv1.FormatIgnition)...)
	if s.name != "" && len(errs) == 0 && FormatOf(spec) != s.format {
		errs = append(errs, field.Forbidden(at.Child("format"), fmt.Sprintf("images of %s read %s", s.name, s.format)))
	}
	mode := at.Child("install", "mode")
	if bad := oneOf(spec.Install.Mode, mode, bootstrapv1.InstallPrebuilt, bootstrapv1.InstallPackages,
		bootstrapv1.InstallBinaries); len(bad) > 0 {
		return append(errs, bad...)
	}
	host := at.Child("host")
	needs := func(given bool, what string) {
		if given && s.name == "" {
			errs = append(errs, field.Required(at.Child("operatingSystem"), "needed for "+host.Child(what).String()))
		}
	}
	if Installs(spec) && s.name == "" {
		errs = append(errs, field.Required(at.Child("operatingSystem"), "Drover must know the system to install the node's software"))
	} else if s.name != "" && !slices.Contains(s.modes(), modeOf(spec)) {
		unsupported := field.NotSupported(mode, spec.Install.Mode, s.modes())
		unsupported.Detail += " for " + string(s.name)
		errs = append(errs, unsupported)
	}
	needs(spec.Host.CABundle != "", "caBundle")
	needs(spec.Host.UnattendedUpgrades != "", "unattendedUpgrades")
	if spec.Host.Subscription.Name != "" && !s.subscribes {
		errs = append(errs, field.Forbidden(host.Child("subscription"), "only machines of RHEL have a subscription"))
	}
	if spec.Containerd.PauseImage != "" && !Installs(spec) {
		errs = append(errs, field.Forbidden(at.Child("containerd", "pauseImage"), "a prebuilt image brings its own"))
	}
	return errs
}

func validateInstall(in *bootstrapv1.Install, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if in.Packages != (bootstrapv1.PackagesInstall{}) && in.Mode != bootstrapv1.InstallPackages {
		errs = append(errs, field.Forbidden(at.Child("packages"), "needs the mode Packages"))
	}
	packages := at.Child("packages")
	errs = append(errs, match(in.Packages.ContainerdVersion, packagePattern, packages.Child("containerdVersion"),
		"must be a version, such as 2.2")...)
	for name, url := range map[string]string{"kubernetesRepository": in.Packages.KubernetesRepository,
		"containerdRepository": in.Packages.ContainerdRepository} {
		if strings.HasPrefix(url, "http:") || strings.HasSuffix(url, "/") {
			errs = append(errs, field.Invalid(packages.Child(name), shorten(url), "must begin with https:// and not end with a slash"))
		} else {
			errs = append(errs, match(url, mirrorPattern, packages.Child(name), "must be an address that begins with https://")...)
		}
	}
	if given := in.Binaries != (bootstrapv1.BinariesInstall{}); given != (in.Mode == bootstrapv1.InstallBinaries) {
		return append(errs, field.Invalid(at.Child("binaries"), "", "goes together with the mode Binaries"))
	}
	if in.Mode != bootstrapv1.InstallBinaries {
		return errs
	}
	b, binaries := in.Binaries, at.Child("binaries")
	errs = append(errs, oneOf(b.Architecture, binaries.Child("architecture"), bootstrapv1.ArchitectureAMD64, bootstrapv1.ArchitectureARM64)...)
	errs = append(errs, match(b.Mirror, mirrorPattern, binaries.Child("mirror"), "must be an address that begins with https:// or http://")...)
	errs = append(errs, validateSHA256(b.Kubelet.SHA256, binaries.Child("kubelet", "sha256"))...)
	for _, r := range []struct {
		name     string
		release  bootstrapv1.Release
		optional bool
	}{{"containerd", b.Containerd, false}, {"runc", b.Runc, false}, {"cniPlugins", b.CNIPlugins, false}, {"crictl", b.Crictl, true}} {
		if r.optional && r.release == (bootstrapv1.Release{}) {
			continue
		}
		if !releasePattern.MatchString(r.release.Version) {
			errs = append(errs, field.Invalid(binaries.Child(r.name, "version"), shorten(r.release.Version), "must be a version, such as 2.2.1"))
		}
		errs = append(errs, validateSHA256(r.release.SHA256, binaries.Child(r.name, "sha256"))...)
	}
	return errs
}

// validateJoin checks the fields that apply only to kubeadm.
func validateJoin(spec *bootstrapv1.DroverConfigSpec, at *field.Path) field.ErrorList {
	ignored, join := at.Child("join", "ignorePreflightErrors"), spec.Join
	errs := oneOf(join.Method, at.Child("join", "method"), bootstrapv1.JoinKubelet, bootstrapv1.JoinKubeadm)
	if len(join.IgnorePreflightErrors) > 0 && !joinsByKubeadm(spec) {
		errs = append(errs, field.Forbidden(ignored, "needs the method Kubeadm"))
	}
	seen := map[string]bool{}
	for i, name := range join.IgnorePreflightErrors {
		lower := strings.ToLower(name)
		switch {
		case !checkPattern.MatchString(name):
			errs = append(errs, field.Invalid(ignored.Index(i), shorten(name),
				"must be the name of a check of kubeadm's, such as SystemVerification"))
		case seen[lower]:
			errs = append(errs, field.Duplicate(ignored.Index(i), shorten(name)))
		case lower == "all" && len(join.IgnorePreflightErrors) > 1:
			errs = append(errs, field.Invalid(ignored.Index(i), name, "stands alone: there is nothing beyond it"))
		}
		seen[lower] = true
	}
	b := spec.Install.Binaries
	if b == (bootstrapv1.BinariesInstall{}) {
		return errs
	}
	kubeadm := at.Child("install", "binaries", "kubeadm")
	switch given := b.Kubeadm != (bootstrapv1.Checksum{}); {
	case given && !joinsByKubeadm(spec):
		errs = append(errs, field.Forbidden(kubeadm, "needs join.method Kubeadm"))
	case joinsByKubeadm(spec):
		errs = append(errs, validateSHA256(b.Kubeadm.SHA256, kubeadm.Child("sha256"))...)
	}
	return errs
}

func validateSHA256(sum string, at *field.Path) field.ErrorList {
	if sha256Pattern.MatchString(sum) {
		return nil
	}
	return field.ErrorList{field.Invalid(at, shorten(sum), "must be 64 hexadecimal digits")}
}

func validateKubelet(k *bootstrapv1.Kubelet, at *field.Path) field.ErrorList {
	errs := oneOf(k.NodeIPFamily, at.Child("nodeIPFamily"), bootstrapv1.NodeIPv4, bootstrapv1.NodeIPv6, bootstrapv1.NodeDualStack)
	errs = append(errs, validateFeatureGates(k.FeatureGates, at.Child("featureGates"))...)
	for name, reserved := range map[string]map[string]string{"systemReserved": k.SystemReserved, "kubeReserved": k.KubeReserved} {
		for _, key := range slices.Sorted(maps.Keys(reserved)) {
			errs = append(errs, oneOf(key, at.Child(name), "cpu", "memory", "ephemeral-storage", "pid")...)
			errs = append(errs, validateAmount(reserved[key], false, at.Child(name).Key(shorten(key)))...)
		}
	}
	errs = append(errs, validateEviction(k, at)...)
	if k.ContainerLogMaxSize != "" {
		errs = append(errs, validateAmount(k.ContainerLogMaxSize, false, at.Child("containerLogMaxSize"))...)
	}
	if k.Configuration != nil {
		errs = append(errs, validatePassedThrough(k.Configuration.Raw, at.Child("configuration"))...)
	}
	return errs
}

func validateFeatureGates(gates []bootstrapv1.FeatureGate, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, gate := range gates {
		at := at.Index(i)
		if !gatePattern.MatchString(gate.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), shorten(gate.Name), "must be a feature gate's name"))
		}
		if seen[gate.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), shorten(gate.Name)))
		}
		seen[gate.Name] = true
		if gate.State == "" {
			errs = append(errs, field.Required(at.Child("state"), "Enabled or Disabled"))
		}
		errs = append(errs, oneOf(gate.State, at.Child("state"), bootstrapv1.FeatureEnabled, bootstrapv1.FeatureDisabled)...)
	}
	return errs
}

func validateEviction(k *bootstrapv1.Kubelet, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for name, thresholds := range map[string]map[string]string{"evictionHard": k.EvictionHard, "evictionSoft": k.EvictionSoft} {
		for _, key := range slices.Sorted(maps.Keys(thresholds)) {
			errs = append(errs, match(key, signalPattern, at.Child(name), "must be an eviction signal, such as memory.available")...)
			errs = append(errs, validateAmount(thresholds[key], true, at.Child(name).Key(shorten(key)))...)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(k.EvictionSoftGracePeriod)) {
		if _, ok := k.EvictionSoft[key]; !ok {
			errs = append(errs, field.Invalid(at.Child("evictionSoftGracePeriod"), shorten(key), "is no signal in evictionSoft"))
		}
		if d, err := time.ParseDuration(k.EvictionSoftGracePeriod[key]); err != nil || d < 0 {
			errs = append(errs, field.Invalid(at.Child("evictionSoftGracePeriod").Key(shorten(key)), shorten(k.EvictionSoftGracePeriod[key]),
				"must be a duration, such as 1m30s"))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(k.EvictionSoft)) {
		if _, ok := k.EvictionSoftGracePeriod[key]; !ok {
			errs = append(errs, field.Required(at.Child("evictionSoftGracePeriod").Key(shorten(key)), "each signal of evictionSoft needs one"))
		}
	}
	return errs
}

func validateAmount(s string, percent bool, at *field.Path) field.ErrorList {
	if percent && percentPattern.MatchString(s) {
		return nil
	}
	if q, err := resource.ParseQuantity(s); err != nil || q.Sign() < 0 || len(s) > 32 {
		return field.ErrorList{field.Invalid(at, shorten(s), "must be an amount, such as 200Mi")}
	}
	return nil
}

func validatePassedThrough(raw []byte, at *field.Path) field.ErrorList {
	names, err := passedThrough(raw)
	if err != nil {
		return field.ErrorList{field.Invalid(at, "(not shown)", err.Error())}
	}
	var errs field.ErrorList
	own := kubeletFields()
	for _, name := range names {
		if instead, ok := own[name]; ok && instead != "" {
			errs = append(errs, field.Forbidden(at.Child(name), "use "+instead+" of this spec"))
		} else if ok {
			errs = append(errs, field.Forbidden(at.Child(name), "Drover sets it"))
		}
	}
	return errs
}

func validateContainerd(c *bootstrapv1.Containerd, at *field.Path) field.ErrorList {
	errs := match(c.PauseImage, imagePattern, at.Child("pauseImage"), "must be an image's name")
	seen := map[string]bool{}
	for i, r := range c.Registries {
		at := at.Child("registries").Index(i)
		if !registryPattern.MatchString(r.Host) {
			errs = append(errs, field.Invalid(at.Child("host"), shorten(r.Host), "must be a registry's host, or _default"))
		}
		if seen[r.Host] {
			errs = append(errs, field.Duplicate(at.Child("host"), shorten(r.Host)))
		}
		seen[r.Host] = true
		if len(r.Mirrors) == 0 {
			errs = append(errs, field.Required(at.Child("mirrors"), "at least one"))
		}
		mirrors := map[string]bool{}
		for j, m := range r.Mirrors {
			at := at.Child("mirrors").Index(j).Child("url")
			if !mirrorPattern.MatchString(m.URL) {
				errs = append(errs, field.Invalid(at, shorten(m.URL), "must be an address that begins with https:// or http://"))
			}
			if mirrors[m.URL] {
				errs = append(errs, field.Duplicate(at, shorten(m.URL)))
			}
			mirrors[m.URL] = true
		}
	}
	return append(errs, validateSecretName(c.Credentials, at.Child("credentials"))...)
}

func validateSecretName(s bootstrapv1.SecretName, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Name != "" {
		for _, m := range validation.IsDNS1123Subdomain(s.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), shorten(s.Name), m))
		}
	}
	return errs
}

func validateHost(h *bootstrapv1.Host, at *field.Path) field.ErrorList {
	errs := validateProxy(&h.Proxy, at.Child("proxy"))
	if h.CABundle != "" {
		if _, err := ParseCA([]byte(h.CABundle)); err != nil {
			errs = append(errs, field.Invalid(at.Child("caBundle"), "(not shown)", err.Error()))
		}
	}
	for i, s := range h.NTPServers {
		if !serverPattern.MatchString(s) {
			errs = append(errs, field.Invalid(at.Child("ntpServers").Index(i), shorten(s), "must be a name or an address"))
		}
	}
	errs = append(errs, validateUsers(h.Users, at.Child("users"))...)
	errs = append(errs, oneOf(h.Swap, at.Child("swap"), bootstrapv1.SwapOff, bootstrapv1.SwapUnchanged)...)
	for _, name := range slices.Sorted(maps.Keys(h.Sysctls)) {
		if !sysctlPattern.MatchString(name) {
			errs = append(errs, field.Invalid(at.Child("sysctls"), shorten(name), "must be a parameter's name"))
		}
		if v := h.Sysctls[name]; v != strings.TrimSpace(v) || v == "" || len(v) > 1024 || !plain(v) {
			errs = append(errs, field.Invalid(at.Child("sysctls").Key(shorten(name)), shorten(v), "must be one printable line"))
		}
	}
	for i, m := range h.KernelModules {
		if !modulePattern.MatchString(m) {
			errs = append(errs, field.Invalid(at.Child("kernelModules").Index(i), shorten(m), "must be a module's name"))
		}
	}
	errs = append(errs, oneOf(h.UnattendedUpgrades, at.Child("unattendedUpgrades"), bootstrapv1.UpgradesOn, bootstrapv1.UpgradesOff)...)
	return append(errs, validateSecretName(h.Subscription, at.Child("subscription"))...)
}

func validateUsers(users []bootstrapv1.User, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{"root": true}
	for i, u := range users {
		at := at.Index(i)
		if !userPattern.MatchString(u.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), shorten(u.Name), "must be a user's name: small letters, digits, - and _"))
		}
		if seen[u.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), shorten(u.Name)))
		}
		seen[u.Name] = true
		errs = append(errs, validateKeys(u.SSHAuthorizedKeys, at.Child("sshAuthorizedKeys"))...)
		errs = append(errs, oneOf(u.Sudo, at.Child("sudo"), bootstrapv1.SudoAllowed, bootstrapv1.SudoDenied)...)
	}
	return errs
}

// validateProxy shows no address in errors, because it may contain a password.
func validateProxy(p *bootstrapv1.Proxy, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for name, address := range map[string]string{"httpProxy": p.HTTPProxy, "httpsProxy": p.HTTPSProxy} {
		if address == "" {
			continue
		}
		if u, err := url.Parse(address); err != nil || u.Hostname() == "" || !proxyPattern.MatchString(address) {
			errs = append(errs, field.Invalid(at.Child(name), "(not shown)", "must be http://host:port or https://host:port"))
		}
	}
	for i, s := range p.NoProxy {
		if !noProxyPattern.MatchString(s) {
			errs = append(errs, field.Invalid(at.Child("noProxy").Index(i), shorten(s), "must be a name, an address or a network"))
		}
	}
	if len(p.NoProxy) > 0 && p.HTTPProxy+p.HTTPSProxy == "" {
		errs = append(errs, field.Forbidden(at.Child("noProxy"), "there is no proxy to go without"))
	}
	return errs
}
