// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ManagementOptions say what a Management is like. The zero value serves.
type ManagementOptions struct {
	ControlPlaneOptions
	// CoreArgs come last on the command line of Cluster API's core manager.
	CoreArgs []string
}

// Management is a management cluster: a ControlPlane with Cluster API's managers running, and
// Drover's kinds, roles and webhooks installed. The managers run with the service accounts and
// roles of their releases; nobody but the tests is an administrator. It can serve as workload
// cluster at the same time.
type Management struct {
	*ControlPlane

	opts     ManagementOptions
	client   client.Client
	core     *Process
	services []*service
	// providers are Cluster API's managers, the core's first.
	providers []manager
	drover    *service // Drover's webhooks; nil until it is installed

	mu       sync.Mutex // of what follows: several managers may be started at once
	managers []*Process // all that were ever started, Cluster API's and Drover's
	numbers  map[string]int
}

// StartManagement starts a management cluster and returns once Cluster API serves. The context
// bounds the start only: call Stop in the end, also where a test fails.
func StartManagement(ctx context.Context, opts ManagementOptions) (_ *Management, err error) {
	m := &Management{opts: opts, numbers: map[string]int{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Stop())
		}
	}()
	core := coreProvider()
	// All at once, because what they share is then compiled once.
	needs := []string{"etcd", "kube-apiserver", "kube-controller-manager", core.tool}
	if m.opts.Tools, err = opts.Tools.with(ctx, opts.Progress, needs...); err != nil {
		return nil, err
	}
	module, version, err := FindModule(ctx, ".", "sigs.k8s.io/cluster-api")
	if err != nil {
		return nil, err
	}
	if m.ControlPlane, err = StartControlPlane(ctx, m.opts.ControlPlaneOptions); err != nil {
		return nil, err
	}
	if m.client, err = client.New(m.admin, client.Options{Scheme: runtime.NewScheme()}); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	if err := m.installInventory(ctx, module); err != nil {
		return nil, fmt.Errorf("install clusterctl's inventory: %w", err)
	}
	if m.core, err = m.addProvider(ctx, module, version, core, opts.CoreArgs...); err != nil {
		return nil, err
	}
	return m, nil
}

// Core is Cluster API's core manager, to be measured or harmed.
func (m *Management) Core() *Process { return m.core }

// Restore goes back to a Backup, which is used up by that. All managers are killed; Cluster API's
// are started again, and Drover's are the caller's.
func (m *Management) Restore(ctx context.Context, backup string) error {
	m.killManagers()
	if err := m.restore(ctx, backup); err != nil {
		return err
	}
	for i, g := range m.providers {
		p, err := m.startManager(ctx, g)
		if err != nil {
			return fmt.Errorf("start Cluster API's %s: %w", g.name, err)
		}
		if i == 0 {
			m.core = p
		}
	}
	return nil
}

func (m *Management) killManagers() {
	m.mu.Lock()
	managers := slices.Clone(m.managers)
	m.mu.Unlock()
	for _, p := range managers {
		p.Kill()
	}
}

// Stop ends all that runs here, whoever started it, and frees all ports. It may be called twice.
func (m *Management) Stop() error {
	m.killManagers()
	for _, s := range m.services {
		s.close()
	}
	m.services = nil
	if m.ControlPlane == nil {
		return nil
	}
	return m.ControlPlane.Stop()
}

// manager is a program that is built on controller-runtime and takes the flags that Cluster API's
// managers take.
type manager struct {
	name, path                string
	namespace, serviceAccount string
	service                   *service // that its webhooks are called through
	args, env                 []string
}

// startManager runs a manager with the token of its service account and waits until it is ready.
func (m *Management) startManager(ctx context.Context, g manager) (*Process, error) {
	raw, err := m.ServiceAccountKubeconfig(ctx, g.namespace, g.serviceAccount)
	if err != nil {
		return nil, err
	}
	serving, err := m.ca.server(g.name, nil)
	if err != nil {
		return nil, err
	}
	// Each start has its own folder and log, so that the log of one that crashed stays as it was.
	m.mu.Lock()
	m.numbers[g.name]++
	name := g.name + "-" + strconv.Itoa(m.numbers[g.name])
	m.mu.Unlock()
	certs := filepath.Join(m.Dir, name)
	if err := serving.write(certs); err != nil {
		return nil, err
	}
	if err := writeFiles(certs, map[string][]byte{"kubeconfig": raw}); err != nil {
		return nil, err
	}
	p, err := onFreePorts(3, func(ports []int) (*Process, error) {
		webhook, health, diagnostics := ports[0], ports[1], ports[2]
		p, err := start(command{
			name: name, path: g.path, dir: m.Dir,
			env: append([]string{"POD_NAMESPACE=" + g.namespace, "POD_NAME=" + name, "POD_UID=" + name}, g.env...),
			args: append([]string{
				"--kubeconfig=" + filepath.Join(certs, "kubeconfig"),
				"--webhook-port=" + strconv.Itoa(webhook), "--webhook-cert-dir=" + certs,
				"--health-addr=" + local(health),
				"--diagnostics-address=" + local(diagnostics), "--insecure-diagnostics",
			}, g.args...),
		})
		if err != nil {
			return nil, err
		}
		p.Health, p.Metrics = "http://"+local(health), "http://"+local(diagnostics)+"/metrics"
		if err := p.waitFor(ctx, name+" is ready", startDeadline, probe(http.DefaultClient, p.Health+"/readyz")); err != nil {
			return p, err
		}
		g.service.add(p, local(webhook))
		return p, nil
	})
	if p != nil {
		m.mu.Lock()
		m.managers = append(m.managers, p)
		m.mu.Unlock()
	}
	if err != nil {
		if p != nil {
			p.Kill()
		}
		return nil, err
	}
	return p, nil
}

// DroverOptions say how to run Drover.
type DroverOptions struct {
	// Binary is the drover program. By default it is built without the race detector.
	Binary string
	// Args come last on the command line, after those for the kubeconfig, the ports and the
	// webhooks' certificates.
	Args []string
	// Env adds to the environment.
	Env []string
}

// StartDrover runs a Drover manager and returns once it is ready. The first call installs Drover's
// kinds, roles and webhooks; further calls run it again, or further ones beside it: as in a
// cluster, webhook calls go to one that is ready. It may do what the roles in config/rbac say, and
// nothing else.
//
// Leader election is what Drover's default and Args say: after a Kill, the next leader waits until
// the lease has run out.
func (m *Management) StartDrover(ctx context.Context, opts DroverOptions) (*Process, error) {
	if err := m.InstallDrover(ctx); err != nil {
		return nil, err
	}
	binary := opts.Binary
	if binary == "" {
		var err error
		if binary, err = Build(ctx, false); err != nil {
			return nil, err
		}
	}
	p, err := m.startManager(ctx, manager{
		name: "drover", path: binary, namespace: droverNamespace, serviceAccount: "drover-manager", service: m.drover,
		args: append([]string{"--leader-elect-namespace=" + droverNamespace, "--simulated-cloud", "--allow-endpoints=127.0.0.0/8,::1/128"}, opts.Args...), env: opts.Env,
	})
	if err != nil {
		return nil, fmt.Errorf("start Drover: %w", err)
	}
	return p, nil
}

// What config/default calls Drover's part.
const (
	droverNamespace = "drover-system"
	droverLabel     = "infrastructure-drover"
)

// InstallDrover installs Drover's kinds, roles and webhooks, as config/ has them. StartDrover does
// it by itself.
func (m *Management) InstallDrover(ctx context.Context) error {
	if m.drover != nil {
		return nil
	}
	root, err := Root(ctx)
	if err != nil {
		return err
	}
	s, err := newService()
	if err != nil {
		return err
	}
	m.services = append(m.services, s)
	config := filepath.Join(root, "config")
	if err := m.installKinds(ctx, filepath.Join(config, "crd", "bases"), s.url(), provider{label: droverLabel}); err != nil {
		return fmt.Errorf("install Drover's kinds: %w", err)
	}
	roles, err := read(filepath.Join(config, "rbac"))
	if err != nil {
		return err
	}
	if err := apply(ctx, m.client, append([]*unstructured.Unstructured{namespace(droverNamespace, nil)}, roles...)...); err != nil {
		return fmt.Errorf("install Drover's roles: %w", err)
	}
	webhooks := filepath.Join(config, "webhook", "manifests.yaml")
	if _, err := os.Stat(webhooks); err == nil {
		if err := m.installWebhooks(ctx, webhooks, "drover-", s.url()); err != nil {
			return fmt.Errorf("install Drover's webhooks: %w", err)
		}
	}
	if err := m.enroll(ctx, droverLabel, droverNamespace, "v0.1.0"); err != nil {
		return err
	}
	m.drover = s
	return nil
}
