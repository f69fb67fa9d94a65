// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// cdiNamespace is the namespace of CDI.
const cdiNamespace = "cdi"

// StartCDI installs CDI (Containerized Data Importer) in the control plane, runs its own
// cdi-controller with its own service account, and returns once it works. hack/kubevirt builds it,
// and its output goes to progress. There is no cdi-apiserver, and so none of its webhooks. Nothing
// runs its importer pods: the caller must simulate that.
func (c *ControlPlane) StartCDI(ctx context.Context, progress io.Writer) (p *Process, err error) {
	defer func() {
		if err != nil {
			if p != nil {
				p.Kill()
			}
			p, err = nil, fmt.Errorf("start CDI in %s: %w", c.Name, err)
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
	if err := c.installCDI(ctx, admin, filepath.Join(built, "cdi.json")); err != nil {
		return nil, err
	}
	if err := c.writeCDIFiles(ctx); err != nil {
		return nil, err
	}
	p, err = start(command{
		name: "cdi-controller", path: filepath.Join(built, "cdi-controller"), dir: c.Dir, env: cdiEnvironment(),
		args: []string{"--kubeconfig=cdi-controller.kubeconfig"},
	})
	if err != nil {
		return nil, err
	}
	return p, p.waitFor(ctx, "CDI works", startDeadline, func(ctx context.Context) error { return configured(ctx, admin) })
}

// cdiEnvironment returns the environment that CDI's operator would give the controller. The images
// belong to pods that never really run.
func cdiEnvironment() []string {
	env := []string{"UPLOADPROXY_SERVICE=cdi-uploadproxy", "PULL_POLICY=IfNotPresent", "INSTALLER_PART_OF_LABEL=", "INSTALLER_VERSION_LABEL="}
	for _, image := range []string{"IMPORTER", "CLONER", "UPLOADSERVER", "OVIRT_POPULATOR"} {
		env = append(env, image+"_IMAGE=registry.example.com/cdi:1")
	}
	return env
}

// configured returns nil once the controller has set the resource requirements of importer pods in
// the status of the CDIConfig.
func configured(ctx context.Context, admin client.Client) error {
	config := object("cdi.kubevirt.io/v1beta1", "CDIConfig", "", "config", nil)
	if err := admin.Get(ctx, client.ObjectKeyFromObject(config), config); err != nil {
		return err
	}
	if _, there, err := unstructured.NestedMap(config.Object, "status", "defaultPodResourceRequirements"); err != nil || !there {
		return errors.Join(err, errors.New("the CDIConfig has no status yet"))
	}
	return nil
}

// installCDI applies the manifests, and the CDI object that the operator would reconcile.
func (c *ControlPlane) installCDI(ctx context.Context, admin client.Client, manifests string) error {
	crds, others, err := readDefinitions(manifests)
	if err != nil {
		return err
	}
	if err := apply(ctx, admin, append(crds, object("v1", "Namespace", "", cdiNamespace, nil))...); err != nil {
		return err
	}
	if err := established(ctx, admin, crds); err != nil {
		return err
	}
	return apply(ctx, admin, append(others, object("cdi.kubevirt.io/v1beta1", "CDI", "", "cdi", map[string]any{"spec": map[string]any{}}))...)
}

// readDefinitions reads a list of manifests, and returns the CRDs separately: they must be applied
// first.
func readDefinitions(manifests string) (crds, others []*unstructured.Unstructured, err error) {
	lists, err := read(manifests)
	if err != nil {
		return nil, nil, err
	}
	for _, list := range lists {
		err := list.EachListItem(func(o runtime.Object) error {
			item := o.(*unstructured.Unstructured)
			if item.GetKind() == "CustomResourceDefinition" {
				crds = append(crds, item)
			} else {
				others = append(others, item)
			}
			return nil
		})
		if err != nil {
			return nil, nil, fmt.Errorf("read the manifests: %w", err)
		}
	}
	return crds, others, nil
}

// writeCDIFiles writes the controller's kubeconfig, and the key with which it signs the tokens for
// clones. The build makes the controller look for the key in its working directory. The files for
// uploads are omitted.
func (c *ControlPlane) writeCDIFiles(ctx context.Context) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("make CDI's key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encode CDI's key: %w", err)
	}
	err = writeFiles(filepath.Join(c.Dir, "var/run/cdi/token/keys"), map[string][]byte{
		"id_rsa":     pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
		"id_rsa.pub": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
	})
	if err != nil {
		return err
	}
	kubeconfig, err := c.ServiceAccountKubeconfig(ctx, cdiNamespace, "cdi-sa")
	if err != nil {
		return err
	}
	return writeFiles(c.Dir, map[string][]byte{"cdi-controller.kubeconfig": kubeconfig})
}
