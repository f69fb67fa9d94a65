// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/playground"
)

// accelerator is QEMU's accelerator. /dev/kvm is not the default, because on virtual machines it
// may open and still not run a kernel. QEMU's own size of the cache for translated code stays: with
// 256 MiB, the programs of a control plane were translated again every half a minute.
var accelerator = flag.String("accel", "tcg,thread=multi", "QEMU's accelerator")

// Each guest has its own network: QEMU's user-mode network, in which this computer is the gateway.
// The clouds' networks use the same addresses, so that guests have the addresses that the cloud
// reports.
const (
	network  = "10.0.0.0/16"
	gateway  = "10.0.2.2"
	resolver = "10.0.2.3"
)

// everything is a network of all addresses, for guests that expect services at addresses of their
// cloud.
const everything = "0.0.0.0/0.0.0.0"

// anyMAC is the MAC address for clouds that specify none.
const anyMAC = "52:54:00:12:34:56"

// kernelArguments keep an emulated, short-lived guest from unnecessary work. The journal goes to
// the console, to help with troubleshooting.
const kernelArguments = "root=/dev/vda rw console=ttyS0 quiet loglevel=3 mitigations=off no_timer_check random.trust_cpu=1 " +
	"systemd.show_status=0 systemd.journald.forward_to_console=1 systemd.journald.max_level_console=info"

// ignitionArguments are for guests that Ignition sets up, not cloud-init.
const ignitionArguments = " ignition.firstboot cloud-init=disabled systemd.firstboot=off"

// hypervisor runs a guest for each running instance of the simulated cloud. A guest gets the data
// that the cloud's API received.
type hypervisor struct {
	admin  simulator.Admin
	images string // the folder of hack/vm/install
	run    string // the program of hack/debs
	dir    string
	// image and network are those of the simulated cloud's guests, where the cloud's image has
	// another name, and where its network is not the default one.
	image, network string

	mu     sync.Mutex
	guests map[string]*guest // by instance
}

// guest is a guest that is or was running.
type guest struct {
	*playground.Process
	machine body.Machine
	// kubelet and apiServer are the addresses on this computer that lead to the guest's kubelet and
	// API server.
	kubelet, apiServer string
	// network is the guest's network, if it is not the default one. It must contain the gateway.
	network string
	// tables are QEMU's options for the SMBIOS tables by which cloud-init recognizes a cloud.
	tables []string
	// services maps addresses in the guest's network, which must contain them, to ports of this
	// computer. They answer at port 80.
	services map[string]string
	// elsewhere is true for guests that are not the simulated cloud's.
	elsewhere bool
	// read is how many bytes of its console were read, and shown what the cloud shows of them.
	read  int64
	shown string
}

// knowsItself reports whether the guest has instance data. A kubelet that Ignition sets up does not
// know its provider ID, so Drover sets it.
func (g *guest) knowsItself() bool { return !isIgnition(g.machine.UserData) }

func isIgnition(userData []byte) bool { return bytes.HasPrefix(userData, []byte("{")) }

// start makes guests the bodies of the cloud's instances, until the test ends.
func (h *hypervisor) start(t *testing.T, admin simulator.Admin) {
	t.Helper()
	h.admin = admin
	_, err := admin.AddFault(t.Context(), simulator.Fault{Kind: simulator.DeadBody, Operation: wire.RunInstances})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var following sync.WaitGroup
	t.Cleanup(func() { stop(); following.Wait() })
	following.Go(func() {
		defer h.end(nil)
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := h.follow(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
}

// follow boots instances that run in the cloud, and stops guests whose instances do not run any
// more.
func (h *hypervisor) follow(ctx context.Context) error {
	snapshot, err := h.admin.Snapshot(ctx)
	if err != nil {
		return err
	}
	running := map[string]bool{}
	for _, i := range snapshot.Instances() {
		if i.State != wire.Running {
			continue
		}
		running[i.ID] = true
		if h.guest(i.ID) == nil {
			if err := h.boot(ctx, i.ID, i.Image); err != nil {
				return fmt.Errorf("boot a guest for %s: %w", i.ID, err)
			}
		}
		if err := h.showConsole(ctx, i.ID); err != nil {
			return err
		}
	}
	h.end(running)
	return nil
}

// journal matches a line that journald forwarded.
var journal = regexp.MustCompile(`(?m)^\[ *[0-9]+\.[0-9]+\] [^ ]+\[[0-9]+\]: .*\n`)

// showConsole sends a guest's console output to the cloud. It leaves out journal lines, except
// Drover's: no cloud's image writes the journal to its console, and a kubelet that can't join would
// fill it.
func (h *hypervisor) showConsole(ctx context.Context, id string) error {
	g := h.guest(id)
	lines, err := g.newLines()
	if err != nil || lines == "" {
		return err
	}
	shown := g.shown + journal.ReplaceAllStringFunc(lines, func(line string) string {
		if strings.Contains(line, "drover: ") { // its unit logs to the console
			return line
		}
		return ""
	})
	g.shown = shown[max(0, len(shown)-wire.MaxConsole):]
	return h.admin.SetConsole(ctx, id, []byte(g.shown))
}

// end kills the simulated cloud's guests, except those that are running.
func (h *hypervisor) end(running map[string]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, g := range h.guests {
		if !running[id] && !g.elsewhere {
			g.Kill()
		}
	}
}

// apart returns a function that boots a guest for a stand-in, which must not wait for it. The guest
// runs until off is called, or the test ends.
func apart(t *testing.T) func(boot func(context.Context) (*guest, error)) (off func()) {
	var guests sync.WaitGroup
	t.Cleanup(guests.Wait)
	return func(boot func(context.Context) (*guest, error)) (off func()) {
		ctx, off := context.WithCancel(t.Context())
		guests.Go(func() {
			g, err := boot(ctx)
			if err != nil {
				if ctx.Err() == nil {
					t.Error(err)
				}
				return
			}
			<-ctx.Done()
			g.Kill()
		})
		return off
	}
}

func (h *hypervisor) guest(instance string) *guest {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.guests[instance]
}

func (h *hypervisor) boot(ctx context.Context, id, image string) error {
	machine, err := h.admin.Machine(ctx, id)
	if err != nil {
		return err
	}
	g := &guest{machine: machine, network: h.network}
	seed := func(path string) (string, error) { return h.seed(ctx, machine, path) }
	if err := h.power(ctx, g, cmp.Or(h.image, image), anyMAC, seed); err != nil {
		return err
	}
	return h.admin.Serve(ctx, id, g.apiServer)
}

// power starts a guest. seed writes the disk with the guest's data, unless the cloud gives its
// guests none, and returns additional kernel arguments.
func (h *hypervisor) power(ctx context.Context, g *guest, image, mac string, seed func(path string) (arguments string, err error)) error {
	id := g.machine.InstanceID
	disk, told := filepath.Join(h.dir, id+".qcow2"), filepath.Join(h.dir, id+".iso")
	if err := h.tool(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", filepath.Join(h.images, image+".qcow2"),
		disk); err != nil {
		return err
	}
	arguments, err := seed(told)
	if err != nil {
		return err
	}
	ports, err := playground.FreePorts(2)
	if err != nil {
		return err
	}
	g.kubelet, g.apiServer = fmt.Sprint("127.0.0.1:", ports[0]), fmt.Sprint("127.0.0.1:", ports[1])
	usr := filepath.Join(filepath.Dir(h.run), "root", "usr")
	args := []string{"qemu-system-x86_64", "-L", filepath.Join(usr, "share", "qemu"), "-L", filepath.Join(usr, "share", "seabios"),
		"-machine", "q35", "-accel", *accelerator, "-cpu", "max,la57=off", "-m", strconv.FormatInt(g.machine.MemoryMiB, 10), "-smp",
		strconv.Itoa(int(g.machine.CPU)),
		"-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-kernel", filepath.Join(h.images, "kernel"), "-initrd", filepath.Join(h.images, "initrd"), "-append", kernelArguments + arguments,
		"-drive", "if=virtio,format=qcow2,cache=unsafe,file=" + disk,
		"-netdev", g.netdev(), "-device", "virtio-net-pci,netdev=n,romfile=,mac=" + mac, "-device", "virtio-rng-pci"}
	if _, err := os.Stat(told); err == nil {
		args = append(args, "-drive", "if=virtio,format=raw,readonly=on,file="+told)
	}
	for _, table := range g.tables {
		args = append(args, "-smbios", table)
	}
	env := []string{"QEMU_MODULE_DIR=" + filepath.Join(usr, "lib", "x86_64-linux-gnu", "qemu")}
	g.Process, err = playground.Run(id, h.dir, env, h.run, args...)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.guests[id] = g
	return nil
}

// netdev returns QEMU's options for the guest's network. Each connection to one of its services has
// a process, which connects it to this computer's port.
func (g *guest) netdev() string {
	options := fmt.Sprintf("user,id=n,ipv6=off,net=%s,host=%s,dns=%s,dhcpstart=%s,hostfwd=tcp:%s-%s:10250,hostfwd=tcp:%s-%s:6443",
		cmp.Or(g.network, network), gateway, resolver, g.machine.IP, g.kubelet, g.machine.IP, g.apiServer, g.machine.IP)
	for _, address := range slices.Sorted(maps.Keys(g.services)) {
		host, port, _ := net.SplitHostPort(g.services[address])
		options += fmt.Sprintf(",guestfwd=tcp:%s:80-cmd:bash -c 'exec 3<>/dev/tcp/%s/%s; cat <&3 & exec cat >&3'", address, host, port)
	}
	return options
}

// seed writes the seed disk for the simulated cloud.
func (h *hypervisor) seed(ctx context.Context, m body.Machine, path string) (arguments string, err error) {
	if isIgnition(m.UserData) {
		return ignitionArguments, ignitionSeed(m.UserData, path)
	}
	return "", h.cloudInitSeed(ctx, m, path)
}

// ignitionSeed writes a disk that contains an Ignition config, padded to whole sectors with line
// breaks.
func ignitionSeed(config []byte, path string) error {
	const sector = 512
	config = append(bytes.Clone(config), bytes.Repeat([]byte("\n"), sector-len(config)%sector)...)
	if err := os.WriteFile(path, config, 0o600); err != nil {
		return fmt.Errorf("write the seed: %w", err)
	}
	return nil
}

// cloudInitSeed writes the disk from which cloud-init's NoCloud data source reads.
func (h *hypervisor) cloudInitSeed(ctx context.Context, m body.Machine, path string) error {
	metaData := fmt.Sprintf("instance-id: %s\nlocal-hostname: %s\navailability-zone: %s\nregion: %s\n", m.InstanceID, m.Hostname, m.Zone,
		m.Region)
	return h.writeDisk(ctx, path, "cidata", map[string][]byte{"meta-data": []byte(metaData), "user-data": m.UserData})
}

// writeDisk creates a file system with the label and these files, by path.
func (h *hypervisor) writeDisk(ctx context.Context, path, label string, files map[string][]byte) error {
	dir := path + ".d"
	for name, content := range files {
		file := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(file), 0o700)
		if err == nil {
			err = os.WriteFile(file, content, 0o600)
		}
		if err != nil {
			return fmt.Errorf("write the seed: %w", err)
		}
	}
	return h.tool(ctx, "genisoimage", "-quiet", "-output", path, "-volid", label, "-joliet", "-rock", dir)
}

// tool runs one of Debian's programs that are installed with QEMU.
func (h *hypervisor) tool(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, h.run, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	return nil
}

// newLines returns the lines that the guest has written since the last call. It reads nothing
// twice: to go through megabytes four times a second takes from an interpreted guest what it needs.
func (g *guest) newLines() (string, error) {
	f, err := os.Open(g.Log)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := f.Seek(g.read, io.SeekStart); err != nil {
		return "", err
	}
	raw, err := io.ReadAll(f)
	raw = raw[:bytes.LastIndexByte(raw, '\n')+1]
	g.read += int64(len(raw))
	return string(raw), err
}

// console returns a guest's output, newest last.
func (g *guest) console() string {
	raw, err := os.ReadFile(g.Log)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// show prints the end of the consoles of all guests, for a failed test.
func (h *hypervisor) show(t *testing.T) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, g := range h.guests {
		lines := strings.Split(strings.TrimSpace(g.console()), "\n")
		t.Logf("--- console of %s (%s):\n%s", id, g.machine.Hostname, strings.Join(lines[max(0, len(lines)-60):], "\n"))
	}
}

// newHypervisor returns a hypervisor with its images and QEMU, which are built if they are missing.
func newHypervisor(t *testing.T) *hypervisor {
	t.Helper()
	h := &hypervisor{dir: t.TempDir(), guests: map[string]*guest{}}
	NewWithT(t).Expect(h.install(t.Context())).To(Succeed())
	return h
}

// install builds or finds the images and QEMU.
func (h *hypervisor) install(ctx context.Context) error {
	root, err := playground.Root(ctx)
	if err != nil {
		return err
	}
	script := func(name string, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, filepath.Join(root, "hack", name), args...)
		var said strings.Builder
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("hack/%s: %w\n%s", name, err, said.String())
		}
		return strings.TrimSpace(string(out)), nil
	}
	var errs [2]error
	h.images, errs[0] = script("vm/install")
	h.run, errs[1] = script("debs", "qemu-system-x86", "qemu-utils", "genisoimage")
	return errors.Join(errs[:]...)
}
