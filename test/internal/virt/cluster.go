// SPDX-License-Identifier: Apache-2.0

// Package virt runs a cluster for VMs: a control plane with KubeVirt's own virt-api, webhooks and
// virt-controller and CDI's own cdi-controller, and one simulated node with its storage. The
// package is only for tests. It knows of Drover only what the book tells users: the permissions
// that it needs.
package virt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	kubevirtv1 "kubevirt.io/api/core/v1"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/drover-io/drover/internal/test/playground"
)

// User is the name of Drover's service account in a tenant's namespace, and of its Role and
// RoleBinding.
const User = "drover"

// Cluster is the control plane, with an administrator's client.
type Cluster struct {
	*playground.ControlPlane
	KubeVirt *playground.KubeVirt
	CDI      *playground.Process
	Admin    client.WithWatch
	Node     *Node
}

// Start starts all parts. Stop stops them.
func Start(ctx context.Context) (_ *Cluster, err error) {
	c := &Cluster{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	c.ControlPlane, err = playground.StartControlPlane(ctx, playground.ControlPlaneOptions{
		Name: "infra", Progress: os.Stderr,
		// CDI moves volumes from claim to claim. That needs the controllers that bind them.
		Controllers: append(playground.DefaultControllers(), "persistentvolume-binder-controller", "persistentvolume-protection-controller",
			"persistentvolumeclaim-protection-controller"),
		// virt-api needs the configuration of the front proxy. No name is allowed.
		APIServerArgs: []string{"--requestheader-client-ca-file=pki/ca.crt", "--requestheader-allowed-names=nobody",
			"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group"},
	})
	if err != nil {
		return nil, err
	}
	if c.CDI, err = c.StartCDI(ctx, os.Stderr); err != nil {
		return nil, err
	}
	if c.KubeVirt, err = c.StartKubeVirt(ctx, os.Stderr); err != nil {
		return nil, err
	}
	unhurried := c.AdminConfig()
	unhurried.QPS = -1 // one client acts for many components
	if c.Admin, err = client.NewWithWatch(unhurried, client.Options{Scheme: scheme()}); err != nil {
		return nil, err
	}
	c.Node, err = startNode(ctx, c)
	return c, err
}

func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, kubevirtv1.AddToScheme, cdiv1.AddToScheme,
		instancetypev1.AddToScheme} {
		utilruntime.Must(add(s))
	}
	return s
}

// Stop stops all processes, even after a failed Start.
func (c *Cluster) Stop() error {
	if c.Node != nil {
		c.Node.stop()
	}
	if c.KubeVirt != nil {
		c.KubeVirt.Stop()
	}
	if c.CDI != nil {
		c.CDI.Kill()
	}
	if c.ControlPlane == nil {
		return nil
	}
	return c.ControlPlane.Stop()
}

// NewTenant creates a namespace with Drover's user, which has only the permissions from the book.
func (c *Cluster) NewTenant(ctx context.Context, namespace string) error {
	role, err := bookRole(ctx, User)
	if err != nil {
		return err
	}
	role.Namespace = namespace
	meta := metav1.ObjectMeta{Namespace: namespace, Name: User}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, role, &corev1.ServiceAccount{ObjectMeta: meta},
		Binding(namespace, User),
	} {
		if err := c.Admin.Create(ctx, o); err != nil {
			return fmt.Errorf("create %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// AllowTakeover gives Drover's user of a namespace what the book says that a takeover needs, and
// returns a function that takes it away.
func (c *Cluster) AllowTakeover(ctx context.Context, namespace string) (undo func(context.Context) error, err error) {
	role, err := bookRole(ctx, User+"-takeover")
	if err != nil {
		return nil, err
	}
	role.Namespace = namespace
	binding := Binding(namespace, User)
	binding.Name, binding.RoleRef.Name = role.Name, role.Name
	undo = func(ctx context.Context) error {
		return errors.Join(client.IgnoreNotFound(c.Admin.Delete(ctx, binding)), client.IgnoreNotFound(c.Admin.Delete(ctx, role)))
	}
	if err := errors.Join(c.Admin.Create(ctx, role), c.Admin.Create(ctx, binding)); err != nil {
		return nil, errors.Join(err, undo(ctx))
	}
	return undo, nil
}

// Binding returns a RoleBinding that gives a service account of the namespace the permissions of
// Drover's user.
func Binding(namespace, account string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: User},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
	}
}

// bookRole returns the Role of this name from docs/clouds/kubevirt.md.
func bookRole(ctx context.Context, name string) (*rbacv1.Role, error) {
	root, err := playground.Root(ctx)
	if err != nil {
		return nil, err
	}
	book, err := os.ReadFile(filepath.Join(root, "docs", "clouds", "kubevirt.md"))
	if err != nil {
		return nil, err
	}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(book), -1) {
		for _, text := range strings.Split(block[1], "---\n") {
			role := &rbacv1.Role{}
			if strings.Contains(text, "kind: Role\n") && strings.Contains(text, "name: "+name+"\n") {
				return role, yaml.UnmarshalStrict([]byte(text), role)
			}
		}
	}
	return nil, fmt.Errorf("the book has no Role %s", name)
}
