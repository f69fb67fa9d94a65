// SPDX-License-Identifier: Apache-2.0

package render

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// sandbox is a folder in which a script runs as if it were a machine's root. Stand-ins replace the
// programs that would change a machine, and record their calls.
type sandbox struct {
	*WithT
	t    *testing.T
	root string
}

// standIn records its call. Some stand-ins answer as the script requires. curl reads from the
// folder "web". If the file "cut" exists, it returns only half of the first download. It does not
// trust the API server.
const standIn = `#!/bin/sh
echo "${0##*/} $*" >>"$ROOT/calls"
case ${0##*/} in
kubeadm)
  ls -R "$ROOT/etc/kubernetes" >>"$ROOT/found"
  [ ! -e "$ROOT/fail" ] || . "$ROOT/fail"
  ;;
subscription-manager) [ "$1" != identity ] || exit 1 ;;
systemctl) [ "$1" != list-jobs ] || cat "$ROOT/jobs" ;;
ip) case $1 in -4) echo '192.0.2.1 via 10.0.0.1 dev eth0 src 10.0.0.5 uid 0' ;; -6) echo '2001:db8::1 from :: dev eth0 src fd00::5 metric 1' ;; esac ;;
curl)
  case $* in */livez) printf 'curl: (60) of nobody that is known\nMore details here\n' >&2; exit 60 ;; esac
  while [ $# -gt 0 ]; do
    case $1 in -o) shift; out=$1 ;; https://* | http://*) url=$1 ;; esac
    shift
  done
  have=0
  [ ! -e "$out" ] || have=$(wc -c <"$out")
  file=$ROOT/web/${url##*/}
  if [ -e "$ROOT/cut" ] && [ "$have" = 0 ]; then head -c 10 "$file" >"$out"; exit 18; fi
  tail -c +$((have + 1)) "$file" >>"$out"
  ;;
esac
`

func newSandbox(t *testing.T, in Input) *sandbox {
	t.Helper()
	s := &sandbox{NewWithT(t), t, t.TempDir()}
	out, err := UserData(in)
	s.Expect(err).NotTo(HaveOccurred())
	m := readBack(s, FormatOf(in.Spec), out)
	for path, f := range m.files {
		if strings.HasPrefix(f.content, "#!") {
			f.content = s.moved(f.content)
		}
		s.write(path, f.content, 0o600)
	}
	for _, name := range []string{"systemctl", "sysctl", "swapoff", "apt-get", "apt-mark", "dnf", "curl", "update-ca-certificates",
		"update-ca-trust",
		"subscription-manager", "ip", "sleep", "kubeadm", "conntrack", "iptables", "chown"} {
		s.write("/stand-ins/"+name, standIn, 0o755)
	}
	for _, folder := range []string{"/var/log", "/etc/apt/sources.list.d", "/etc/apt/apt.conf.d", "/usr/local/bin"} {
		s.Expect(os.MkdirAll(s.root+folder, 0o755)).To(Succeed())
	}
	s.write("/etc/fstab", "UUID=1 / ext4 defaults 0 1\n/swap.img\tnone swap sw 0 0\n# /old none swap sw 0 0\n", 0o644)
	return s
}

// moved replaces a script's paths with paths in the sandbox.
func (s *sandbox) moved(script string) string {
	var pairs []string
	for _, folder := range []string{"/etc/", "/var/", "/run/", "/opt/", "/usr/local/"} {
		pairs = append(pairs, folder, s.root+folder)
	}
	return strings.NewReplacer(pairs...).Replace(script)
}

func (s *sandbox) write(path, content string, mode os.FileMode) {
	s.Expect(os.MkdirAll(filepath.Dir(s.root+path), 0o755)).To(Succeed())
	s.Expect(os.WriteFile(s.root+path, []byte(content), mode)).To(Succeed())
}

func (s *sandbox) read(path string) string {
	raw, err := os.ReadFile(s.root + path)
	s.Expect(err).NotTo(HaveOccurred())
	return string(raw)
}

// run returns the script's messages in the journal, and whether it succeeded.
func (s *sandbox) run() (string, bool) {
	s.Expect(os.RemoveAll(s.root + "/calls")).To(Succeed())
	cmd := exec.CommandContext(s.t.Context(), "/bin/sh", s.root+ScriptPath)
	cmd.Env = s.environment()
	out, err := cmd.CombinedOutput()
	_, missing := os.Stat(s.root + SentinelPath)
	s.Expect(missing == nil).To(Equal(err == nil), "%s%s", out, s.read(LogPath))
	return string(out), err == nil
}

func (s *sandbox) environment() []string {
	return []string{"ROOT=" + s.root, "PATH=" + s.root + "/stand-ins:/usr/local/bin:/usr/bin:/bin", "HOME=/"}
}

// serve puts the files of an installation into the folder "web", and their checksums into the spec.
func (s *sandbox) serve(files map[string]string) {
	for name, content := range files {
		s.write("/web/"+name, content, 0o644)
	}
}

func sum(content string) string {
	digest := sha256.Sum256([]byte(content))
	return hex.EncodeToString(digest[:])
}

func archive(g Gomega, name, content string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	g.Expect(w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))})).To(Succeed())
	_, err := w.Write([]byte(content))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.Close()).To(Succeed())
	g.Expect(z.Close()).To(Succeed())
	return b.String()
}

// containerdProgram stands in for containerd.
const containerdProgram = "#!/bin/sh\n[ \"$*\" = --version ]\n"

// webOf returns the files of an installation, and puts their checksums into the spec.
func webOf(g Gomega, b *bootstrapv1.BinariesInstall) map[string]string {
	web := map[string]string{
		"containerd-2.2.1-linux-amd64.tar.gz": archive(g, "bin/containerd", containerdProgram), "runc.amd64": "runc, a program",
		"cni-plugins-linux-amd64-v1.9.1.tgz": archive(g, "./bridge", "bridge"),
		"crictl-v1.36.0-linux-amd64.tar.gz":  archive(g, "crictl", "crictl"),
		"kubelet":                            "kubelet, a program",
	}
	b.Containerd.SHA256, b.Runc.SHA256 = sum(web["containerd-2.2.1-linux-amd64.tar.gz"]), sum(web["runc.amd64"])
	b.CNIPlugins.SHA256, b.Crictl.SHA256 = sum(web["cni-plugins-linux-amd64-v1.9.1.tgz"]), sum(web["crictl-v1.36.0-linux-amd64.tar.gz"])
	b.Kubelet.SHA256 = sum(web["kubelet"])
	return web
}

// TestScriptRuns runs the whole script twice, with every feature.
func TestScriptRuns(t *testing.T) {
	for _, v := range []variant{
		{"", bootstrapv1.InstallPrebuilt}, {"ubuntu-24.04", bootstrapv1.InstallPackages}, {"rhel-9", bootstrapv1.InstallPackages},
		{"flatcar", bootstrapv1.InstallBinaries}, {"debian-13", bootstrapv1.InstallBinaries},
	} {
		t.Run(v.String(), func(t *testing.T) {
			in := full(t, v.name, v.mode)
			web := map[string]string{"Release.key": "key", "gpg": "key"}
			if v.mode == bootstrapv1.InstallBinaries {
				web = webOf(NewWithT(t), &in.Spec.Install.Binaries)
			}
			s := newSandbox(t, in)
			s.serve(web)
			said, ok := s.run()
			s.Expect(ok).To(BeTrue(), "%s\n%s", said, s.read(LogPath))
			s.Expect(said).To(HaveSuffix("drover: Done\n"))
			calls := s.read("/calls")
			s.Expect(calls).To(ContainSubstring("systemctl enable --now kubelet\n"))
			s.Expect(strings.Contains(calls, "chown app:app /home/app/with space\n")).To(Equal(FormatOf(in.Spec) == bootstrapv1.FormatCloudConfig),
				"Ignition does it")
			s.Expect(strings.Index(calls, "systemctl restart containerd")).To(BeNumerically("<",
				strings.Index(calls, "systemctl enable --now kubelet")))
			if _, err := os.Stat(s.root + configuredPath); v.mode != bootstrapv1.InstallPrebuilt {
				s.Expect(err).NotTo(HaveOccurred(), "the kubelet's unit waits for it")
			}
			s.Expect(calls).To(ContainSubstring("systemctl disable drover-bootstrap.service\n"))
			s.Expect(calls).NotTo(ContainSubstring("sleep"), "nothing had to be tried again")

			for _, secret := range []string{in.Token, "marked-secret", "pa%20ss"} {
				s.Expect(said).NotTo(ContainSubstring(secret))
				s.Expect(s.read(LogPath)).NotTo(ContainSubstring(secret))
			}
			info, err := os.Stat(s.root + LogPath)
			s.Expect(err).NotTo(HaveOccurred())
			s.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
			s.Expect(strings.Contains(calls, "subscription-manager register --org=1234 --activationkey=it's marked-secret\n")).To(
				Equal(v.name == "rhel-9"))
			s.Expect(strings.Contains(calls, "systemctl enable --now drover-subscription.service\n")).To(Equal(v.name == "rhel-9"))
			s.Expect(said).To(ContainSubstring("drover: The API server can't be used: curl: (60) of nobody that is known\n"))
			s.Expect(s.read("/etc/fstab")).To(Equal("UUID=1 / ext4 defaults 0 1\n#/swap.img\tnone swap sw 0 0\n# /old none swap sw 0 0\n"))
			s.Expect(s.read(kubeadmFlagsPath)).To(Equal("KUBELET_KUBEADM_ARGS=--node-ip=10.0.0.5,fd00::5\n"))
			s.Expect(s.read(KubeletConfigPath)).To(MatchRegexp(`(?m)^resolvConf: .*/run/systemd/resolve/resolv.conf$`))
			if v.mode == bootstrapv1.InstallBinaries {
				programs := systemOf(in.Spec).programs
				for name, content := range map[string]string{
					programs + "/containerd": containerdProgram, programs + "/runc": "runc, a program", programs + "/crictl": "crictl",
					programs + "/kubelet": "kubelet, a program", "/opt/cni/bin/bridge": "bridge",
				} {
					s.Expect(s.read(name)).To(Equal(content))
					info, err := os.Stat(s.root + name)
					s.Expect(err).NotTo(HaveOccurred())
					s.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o755)))
				}
			}

			// A machine may lose power at any time. The script must not repeat what is done.
			s.Expect(os.Remove(s.root + SentinelPath)).To(Succeed())
			if v.name == "rhel-9" { // already registered
				s.write("/stand-ins/subscription-manager", "#!/bin/sh\n", 0o755)
			}
			said, ok = s.run()
			s.Expect(ok).To(BeTrue(), "%s\n%s", said, s.read(LogPath))
			if v.mode == bootstrapv1.InstallBinaries {
				s.Expect(s.read("/calls")).NotTo(ContainSubstring("curl -f"), "what was fetched is not fetched again")
			}
		})
	}
}

// TestSubscriptionEnds: a machine unregisters when it is powered off, and at no other time.
func TestSubscriptionEnds(t *testing.T) {
	s := newSandbox(t, full(t, "rhel-9", bootstrapv1.InstallPrebuilt))
	for jobs, ends := range map[string]bool{
		"  2 drover-subscription.service stop running\n171 poweroff.target             start waiting\n": true,
		"171 halt.target                 start waiting\n":                                               true,
		"171 reboot.target               start waiting\n172 systemd-reboot.service start waiting\n":     false,
		"171 kexec.target                start waiting\n":                                               false,
		"171 soft-reboot.target          start waiting\n":                                               false,
		"171 poweroff.target             stop  waiting\n":                                               false,
		"171 systemd-poweroff.target     start waiting\n":                                               false,
		"": false,
	} {
		s.write("/jobs", jobs, 0o644)
		s.write("/calls", "", 0o644)
		cmd := exec.CommandContext(t.Context(), "/bin/sh", s.root+subscriptionScriptPath, "unregister")
		cmd.Env = s.environment()
		out, err := cmd.CombinedOutput()
		s.Expect(err).NotTo(HaveOccurred(), string(out))
		s.Expect(strings.Contains(s.read("/calls"), "subscription-manager unregister\n")).To(Equal(ends), jobs)
	}
}

// TestScriptFails: a failure ends the script before the kubelet starts.
func TestScriptFails(t *testing.T) {
	in := least(t, variant{"rhel-9", bootstrapv1.InstallPackages})
	in.Spec.PreKubeletCommands = []string{"echo one", "exit 7", "touch $ROOT/three"}
	s := newSandbox(t, in)
	said, ok := s.run()
	s.Expect(ok).To(BeFalse())
	s.Expect(said).To(HaveSuffix("This machine did not become a node; " + s.root + LogPath + " says why.\n"))
	s.Expect(s.read("/calls")).NotTo(ContainSubstring("kubelet\n"))
	s.Expect(s.root + configuredPath).NotTo(BeAnExistingFile())
	s.Expect(s.root + "/three").NotTo(BeAnExistingFile())
	s.Expect(s.read(LogPath)).To(ContainSubstring("one\n"))
}

// TestInstanceDataMissing: a kubelet never registers with a provider ID that cloud-init could not
// fill in.
func TestInstanceDataMissing(t *testing.T) {
	in := input(t)
	in.ProviderID = "aws:///{{ v1.instance_id }}"
	s := newSandbox(t, in)
	s.write(KubeletDefaultsPath, `KUBELET_EXTRA_ARGS="--provider-id=aws:///CI_MISSING_JINJA_VAR/instance_id"`, 0o644)
	said, ok := s.run()
	s.Expect(ok).To(BeFalse())
	s.Expect(said).To(ContainSubstring("instance data"))
}

// TestFileMissing: cloud-init writes no file after one that it can't write, and runs the script all
// the same. The machine does not become a Node without them.
func TestFileMissing(t *testing.T) {
	in := input(t)
	in.Spec.Files = []bootstrapv1.File{{Path: "/etc/sudoers.d", Content: "a folder of the image"}, {Path: "/etc/important"}}
	s := newSandbox(t, in)
	s.Expect(os.Remove(s.root + filesWrittenPath)).To(Succeed())
	said, ok := s.run()
	s.Expect(ok).To(BeFalse())
	s.Expect(said).To(ContainSubstring("cloud-init could not write a file"))
	s.Expect(s.root+"/calls").NotTo(BeAnExistingFile(), "nothing was called before")
}

// TestKubeadmIsTriedAgain: a failed join is tried again, without the files that it left. A join
// that has got a certificate is not.
func TestKubeadmIsTriedAgain(t *testing.T) {
	in := byKubeadm(least(t, variant{"flatcar", bootstrapv1.InstallBinaries}))
	web := webOf(NewWithT(t), &in.Spec.Install.Binaries)
	web["kubeadm"] = standIn
	in.Spec.Install.Binaries.Kubeadm.SHA256 = sum(standIn)
	s := newSandbox(t, in)
	s.serve(web)
	// The stand-in leaves the files that kubeadm leaves. It gets a certificate the second time, too
	// late for kubeadm.
	s.write("/fail", `mkdir -p "$ROOT/etc/kubernetes/pki"
: >"$ROOT/etc/kubernetes/pki/ca.crt"
: >"$ROOT/etc/kubernetes/bootstrap-kubelet.conf"
[ "$(grep -c '^kubeadm' "$ROOT/calls")" != 2 ] || echo a kubeconfig >"$ROOT/etc/kubernetes/kubelet.conf"
exit 1
`, 0o644)
	said, ok := s.run()
	s.Expect(ok).To(BeTrue(), "%s\n%s", said, s.read(LogPath))
	calls := s.read("/calls")
	s.Expect(strings.Count(calls, "kubeadm join --config "+s.root+JoinConfigPath+"\n")).To(Equal(2))
	s.Expect(strings.Count(calls, "systemctl stop kubelet\n")).To(Equal(2))
	s.Expect(strings.Count(calls, "sleep ")).To(Equal(2))
	s.Expect(s.read("/found")).NotTo(Or(ContainSubstring("ca.crt"), ContainSubstring("bootstrap-kubelet.conf")),
		"kubeadm refuses to begin beside them")
	s.Expect(s.read("/found")).To(ContainSubstring("drover-configured"), "kubeadm starts the kubelet, whose unit waits for it")
	s.Expect(s.root+DiscoveryPath).NotTo(BeAnExistingFile(), "the token has served")
	s.Expect(s.root+KubeletConfigPath).NotTo(BeAnExistingFile(), "kubeadm writes it")
	s.Expect(said + s.read(LogPath)).NotTo(ContainSubstring(in.Token))
}

// TestDownloads: a wrong file is never used, retries are limited, and a partial download is
// continued.
func TestDownloads(t *testing.T) {
	fetch := func(change func(*sandbox)) (*sandbox, string, bool) {
		in := least(t, variant{"debian-13", bootstrapv1.InstallBinaries})
		web := webOf(NewWithT(t), &in.Spec.Install.Binaries)
		s := newSandbox(t, in)
		s.serve(web)
		change(s)
		said, ok := s.run()
		return s, said, ok
	}
	t.Run("wrong", func(t *testing.T) {
		s, said, ok := fetch(func(s *sandbox) { s.serve(map[string]string{"kubelet": "something else"}) })
		s.Expect(ok).To(BeFalse())
		s.Expect(said).To(ContainSubstring("has not the SHA-256 that was given"))
		s.Expect(strings.Count(s.read("/calls"), "/kubelet\n")).To(Equal(30))
		s.Expect(strings.Count(s.read("/calls"), "sleep 60\n")).To(Equal(24))
		s.Expect(s.root + "/usr/local/bin/kubelet").NotTo(BeAnExistingFile())
		s.Expect(s.root + downloads + "kubelet.part").NotTo(BeAnExistingFile())
	})
	t.Run("not there", func(t *testing.T) {
		s, said, ok := fetch(func(s *sandbox) { s.Expect(os.Remove(s.root + "/web/kubelet")).To(Succeed()) })
		s.Expect(ok).To(BeFalse())
		s.Expect(said).To(ContainSubstring("/kubelet could not be fetched: tail: cannot open"), "who sees the console alone learns why")
	})
	t.Run("cut off", func(t *testing.T) {
		s, said, ok := fetch(func(s *sandbox) { s.write("/cut", "", 0o644) })
		s.Expect(ok).To(BeTrue(), said)
		s.Expect(strings.Count(s.read("/calls"), "curl -f")).To(Equal(10), "each of five files in two parts")
		s.Expect(s.read("/usr/local/bin/kubelet")).To(Equal("kubelet, a program"))
	})
}
