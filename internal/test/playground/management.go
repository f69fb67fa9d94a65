// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ManagementOptions configure a Management. The zero value is valid.
type ManagementOptions struct {
	ControlPlaneOptions
	// CoreArgs are appended to the command line of Cluster API's core manager.
	CoreArgs []string
}

// Management is a management cluster: a ControlPlane with Cluster API's running managers, and with
// Drover's kinds, roles and webhooks. The managers run with the service accounts and roles of their
// releases. Only the tests have administrator rights. It can serve as workload cluster at the same
// time.
type Management struct {
	*ControlPlane

	opts     ManagementOptions
	address  string // of this computer, where the API server calls webhooks
	client   client.Client
	core     *Process
	services []*service
	// providers are Cluster API's managers, starting with the core manager.
	providers []manager
	drover    *service // Drover's webhooks; nil until it is installed

	mu       sync.Mutex // guards the fields below: several managers may be started at once
	managers []*Process // all that were ever started, of Cluster API and Drover
	numbers  map[string]int
}

// StartManagement starts a management cluster and returns once Cluster API serves. The context
// bounds only the start: always call Stop at the end, also after a failed test.
func StartManagement(ctx context.Context, opts ManagementOptions) (_ *Management, err error) {
	m := &Management{opts: opts, address: loopback, numbers: map[string]int{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Stop())
		}
	}()
	// All in one call, so that their shared dependencies are compiled once.
	needs := []string{"etcd", "kube-apiserver", "kube-controller-manager", coreProvider().tool}
	if m.opts.Tools, err = opts.Tools.with(ctx, opts.Progress, needs...); err != nil {
		return nil, err
	}
	if m.ControlPlane, err = StartControlPlane(ctx, m.opts.ControlPlaneOptions); err != nil {
		return nil, err
	}
	return m, m.startCore(ctx)
}

// HostManagement does the same with a cluster that exists already. Its API servers call webhooks at
// an address of this computer's.
func HostManagement(ctx context.Context, config *rest.Config, address string, opts ManagementOptions) (_ *Management, err error) {
	m := &Management{opts: opts, address: address, numbers: map[string]int{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Stop())
		}
	}()
	if m.opts.Tools, err = opts.Tools.with(ctx, opts.Progress, coreProvider().tool); err != nil {
		return nil, err
	}
	if m.ControlPlane, err = existing(config, m.opts.ControlPlaneOptions); err != nil {
		return nil, err
	}
	return m, m.startCore(ctx)
}

// startCore installs clusterctl's inventory and Cluster API, and starts its core manager.
func (m *Management) startCore(ctx context.Context) error {
	module, version, err := FindModule(ctx, ".", "sigs.k8s.io/cluster-api")
	if err != nil {
		return err
	}
	if m.client, err = client.New(m.admin, client.Options{Scheme: runtime.NewScheme()}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if err := m.installInventory(ctx, module); err != nil {
		return fmt.Errorf("install clusterctl's inventory: %w", err)
	}
	m.core, err = m.addProvider(ctx, module, version, coreProvider(), m.opts.CoreArgs...)
	return err
}

// Core returns Cluster API's core manager, for tests to measure or harm.
func (m *Management) Core() *Process { return m.core }

// Restore goes back to a Backup, which it consumes. It kills all managers and restarts those of
// Cluster API. The caller restarts Drover.
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

// Expose serves the API server at another address of this computer, too, until the API server ends.
// It returns the URL. The API server's certificate does not name the address.
func (m *Management) Expose(ip string) (string, error) {
	s, err := newService(ip)
	if err != nil {
		return "", err
	}
	m.services = append(m.services, s)
	s.add(m.apiServer, strings.TrimPrefix(m.URL, "https://"))
	return s.url(), nil
}

func (m *Management) killManagers() {
	m.mu.Lock()
	managers := slices.Clone(m.managers)
	m.mu.Unlock()
	for _, p := range managers {
		p.Kill()
	}
}

// Stop ends all processes of this cluster and frees all ports. It may be called twice.
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

// manager is a program built on controller-runtime that takes the same flags as Cluster API's
// managers.
type manager struct {
	name, path                string
	namespace, serviceAccount string
	service                   *service // through which its webhooks are called
	args, env                 []string
}

// startManager runs a manager with the token of its service account and waits until it is ready.
func (m *Management) startManager(ctx context.Context, g manager) (*Process, error) {
	raw, err := m.ServiceAccountKubeconfig(ctx, g.namespace, g.serviceAccount)
	if err != nil {
		return nil, err
	}
	serving, err := m.ca.server(g.name, []net.IP{net.ParseIP(m.address)})
	if err != nil {
		return nil, err
	}
	// Each start has its own folder and log, so that the log of a crashed manager is kept.
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

// DroverOptions configure a Drover manager.
type DroverOptions struct {
	// Binary is the manager. By default it is built without the race detector.
	Binary string
	// Args are appended to the command line, after those for the kubeconfig, the ports and the
	// webhooks' certificates.
	Args []string
	// Env is added to the environment.
	Env []string
}

// StartDrover runs a Drover manager and returns once it is ready. The first call also installs
// Drover's kinds, roles and webhooks. Further calls restart it or start additional managers: as in
// a real cluster, webhook calls go to one that is ready. A manager has only the permissions of the
// roles in config/rbac.
//
// Leader election follows Drover's default and Args: after a Kill, the next leader waits until the
// lease has expired.
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
		args: append([]string{"--leader-elect-namespace=" + droverNamespace, "--simulated-cloud", "--allow-endpoints=127.0.0.0/8,::1/128"},
			opts.Args...), env: opts.Env,
	})
	if err != nil {
		return nil, fmt.Errorf("start Drover: %w", err)
	}
	return p, nil
}

// Version is the release that clusterctl's inventory names for Drover: the Makefile's.
const Version = "v0.1.0-rc.2"

// These are the names of Drover's part in config/default.
const (
	droverNamespace = "drover-system"
	droverLabel     = "infrastructure-drover"
)

// InstallDrover installs Drover's kinds, roles and webhooks from config/. StartDrover calls it.
func (m *Management) InstallDrover(ctx context.Context) error {
	if m.drover != nil {
		return nil
	}
	root, err := Root(ctx)
	if err != nil {
		return err
	}
	s, err := newService(m.address)
	if err != nil {
		return err
	}
	m.services = append(m.services, s)
	config := filepath.Join(root, "config")
	if err := m.installKinds(ctx, filepath.Join(config, "crd", "bases"), s.url(), provider{label: droverLabel}); err != nil {
		return fmt.Errorf("install Drover's kinds: %w", err)
	}
	policy, err := read(filepath.Join(config, "crd", "deletion_policy.yaml"))
	if err != nil {
		return err
	}
	if err := apply(ctx, m.client, policy...); err != nil {
		return fmt.Errorf("install the policy that keeps Drover's kinds: %w", err)
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
		patches, err := read(filepath.Join(config, "webhook", "match_conditions.yaml"))
		if err != nil {
			return err
		}
		if err := m.installWebhooks(ctx, webhooks, "drover-", s.url(), patches...); err != nil {
			return fmt.Errorf("install Drover's webhooks: %w", err)
		}
	}
	if err := m.enroll(ctx, droverLabel, droverNamespace, Version); err != nil {
		return err
	}
	m.drover = s
	return nil
}
