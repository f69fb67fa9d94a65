// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kubeVirtNamespace is the namespace of KubeVirt.
const kubeVirtNamespace = "kubevirt"

// KubeVirt is KubeVirt's own virt-api with its webhooks and its virt-controller, each with its own
// service account, in a control plane. There is no virt-handler and no kubelet: the caller must
// simulate them.
type KubeVirt struct {
	// API and Controller are the running processes, for tests to measure or harm.
	API, Controller *Process
	// Handler is the configuration of virt-handler's service account, for the code that simulates
	// virt-handler.
	Handler *rest.Config

	built string // the folder of the programs
}

// Stop ends both processes. It may be called twice.
func (k *KubeVirt) Stop() {
	for _, p := range []*Process{k.Controller, k.API} {
		if p != nil {
			p.Kill()
		}
	}
}

// StartKubeVirt installs KubeVirt in the control plane and returns once its webhooks answer.
// hack/kubevirt builds it, and its output goes to progress. If CDI is needed, start it first:
// virt-controller exits when CDI is installed later, and expects to be restarted.
func (c *ControlPlane) StartKubeVirt(ctx context.Context, progress io.Writer) (_ *KubeVirt, err error) {
	k := &KubeVirt{}
	defer func() {
		if err != nil {
			k.Stop()
			err = fmt.Errorf("start KubeVirt in %s: %w", c.Name, err)
		}
	}()
	built, err := buildKubeVirt(ctx, progress)
	if err != nil {
		return nil, err
	}
	admin, err := client.New(c.AdminConfig(), client.Options{})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	hooks, err := c.installKubeVirt(ctx, admin, filepath.Join(built, "manifests.json"))
	if err != nil {
		return nil, err
	}
	if err := c.writeKubeVirtFiles(ctx); err != nil {
		return nil, err
	}
	url := ""
	k.API, err = onFreePorts(2, func(ports []int) (*Process, error) {
		url = "https://" + local(ports[0])
		return c.runKubeVirt(ctx, built, "virt-api", ports[0], "--console-server-port="+strconv.Itoa(ports[1]),
			"--tls-cert-file=pki/virt-api.crt", "--tls-key-file=pki/virt-api.key",
			"--handler-cert-file=pki/virt-api.crt", "--handler-key-file=pki/virt-api.key")
	})
	if err != nil {
		return nil, err
	}
	for _, hook := range hooks {
		if err := serveAt(hook, url, c.ca.pem); err != nil {
			return nil, err
		}
	}
	if err := apply(ctx, admin, hooks...); err != nil {
		return nil, err
	}
	k.built = built
	if err := k.RestartController(ctx, c); err != nil {
		return nil, err
	}
	raw, err := c.ServiceAccountKubeconfig(ctx, kubeVirtNamespace, "kubevirt-handler")
	if err != nil {
		return nil, err
	}
	k.Handler, err = clientcmd.RESTConfigFromKubeConfig(raw)
	return k, err
}

// RestartController starts virt-controller, after killing a running one. virt-controller exits when
// the API server is down for longer than its lease, and no kubelet here restarts it.
func (k *KubeVirt) RestartController(ctx context.Context, c *ControlPlane) (err error) {
	if k.Controller != nil {
		k.Controller.Kill()
	}
	k.Controller, err = onFreePorts(1, func(ports []int) (*Process, error) {
		return c.runKubeVirt(ctx, k.built, "virt-controller", ports[0],
			"--prom-cert-file=pki/virt-api.crt", "--prom-key-file=pki/virt-api.key")
	})
	return err
}

// buildKubeVirt returns the folder with the programs and the manifests of KubeVirt and CDI.
func buildKubeVirt(ctx context.Context, progress io.Writer) (string, error) {
	root, err := Root(ctx)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "hack", "kubevirt", "build"))
	cmd.Stderr = progress
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build it: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// installKubeVirt applies the manifests, and the KubeVirt object as its operator would leave it. It
// returns the webhook configurations unapplied, because their server does not run yet. It omits the
// APIServices, because nothing here serves the aggregated API.
func (c *ControlPlane) installKubeVirt(ctx context.Context, admin client.Client,
	manifests string) (hooks []*unstructured.Unstructured, err error) {
	crds, items, err := readDefinitions(manifests)
	if err != nil {
		return nil, err
	}
	var others []*unstructured.Unstructured
	for _, item := range items {
		switch item.GetKind() {
		case "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration":
			hooks = append(hooks, item)
		case "APIService":
		default:
			others = append(others, item)
		}
	}
	if err := apply(ctx, admin, append(crds, object("v1", "Namespace", "", kubeVirtNamespace, nil))...); err != nil {
		return nil, err
	}
	if err := established(ctx, admin, crds); err != nil {
		return nil, err
	}
	fast := map[string]any{"restClient": map[string]any{
		"rateLimiter": map[string]any{"tokenBucketRateLimiter": map[string]any{"qps": int64(200), "burst": int64(400)}}}}
	config := map[string]any{"apiConfiguration": fast, "controllerConfiguration": fast, "webhookConfiguration": fast,
		"developerConfiguration": map[string]any{"useEmulation": true}}
	kubevirt := object("kubevirt.io/v1", "KubeVirt", kubeVirtNamespace, "kubevirt",
		map[string]any{"spec": map[string]any{"configuration": config}})
	others = append(others, kubevirt, object("v1", "ConfigMap", kubeVirtNamespace, "kubevirt-ca",
		map[string]any{"data": map[string]any{"ca-bundle": string(c.ca.pem)}}))
	if err := apply(ctx, admin, others...); err != nil {
		return nil, err
	}
	kubevirt.Object["status"] = map[string]any{"phase": "Deployed", "defaultArchitecture": "amd64"}
	if err := admin.Status().Update(ctx, kubevirt); err != nil {
		return nil, fmt.Errorf("tell that KubeVirt is deployed: %w", err)
	}
	return hooks, nil
}

func object(apiVersion, kind, namespace, name string, content map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	for key, value := range content {
		o.Object[key] = value
	}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// writeKubeVirtFiles issues the server's certificate and writes the kubeconfigs of both service
// accounts.
func (c *ControlPlane) writeKubeVirtFiles(ctx context.Context) error {
	server, err := c.ca.server("virt-api.kubevirt.svc", nil, "virt-api.kubevirt.svc")
	if err != nil {
		return err
	}
	files := map[string][]byte{"pki/virt-api.crt": server.cert, "pki/virt-api.key": server.key}
	for file, account := range map[string]string{"virt-api.kubeconfig": "kubevirt-apiserver",
		"virt-controller.kubeconfig": "kubevirt-controller"} {
		if files[file], err = c.ServiceAccountKubeconfig(ctx, kubeVirtNamespace, account); err != nil {
			return err
		}
	}
	return writeFiles(c.Dir, files)
}

// runKubeVirt runs one of the two programs and waits until it is healthy.
func (c *ControlPlane) runKubeVirt(ctx context.Context, built, name string, port int, args ...string) (*Process, error) {
	p, err := start(command{
		name: name, path: filepath.Join(built, name), dir: c.Dir, env: []string{"POD_NAMESPACE=" + kubeVirtNamespace},
		args: append([]string{"--kubeconfig=" + name + ".kubeconfig", "--listen=127.0.0.1", "--port=" + strconv.Itoa(port)}, args...),
	})
	if err != nil {
		return nil, err
	}
	healthy, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.pem,
		ServerName: "virt-api.kubevirt.svc"}})
	if err != nil {
		return p, fmt.Errorf("make a client for %s: %w", name, err)
	}
	check := "/healthz"
	if name == "virt-api" {
		check = "/apis/subresources.kubevirt.io/v1/healthz"
	}
	return p, p.waitFor(ctx, name+" is healthy", startDeadline, probe(healthy, "https://"+local(port)+check))
}
