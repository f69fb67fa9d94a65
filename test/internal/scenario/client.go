// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// Scheme returns a scheme with the kinds of Kubernetes, Cluster API and Drover.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1.AddToScheme, ipamv1.AddToScheme, infrav1.AddToScheme, bootstrapv1.AddToScheme,
		controlplanev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("make a scheme: %w", err)
		}
	}
	return scheme, nil
}

// NewClient returns a client that reads from the API server, without a cache.
func NewClient(config *rest.Config) (client.Client, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return c, nil
}

// Create creates the objects in order. Existing ones stay unchanged.
func Create(ctx context.Context, c client.Client, objects ...client.Object) error {
	for _, o := range objects {
		err := retry(ctx, func(ctx context.Context) error { return c.Create(ctx, o) })
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// retry writes again for five minutes, as a user would, while the API server can't call a webhook.
func retry(ctx context.Context, write func(context.Context) error) (err error) {
	_ = wait.PollUntilContextTimeout(ctx, time.Second, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
		err = write(ctx)
		return err == nil || !strings.Contains(err.Error(), "failed calling webhook"), nil
	})
	return err
}

// Scale sets the pool's number of machines.
func (p Pool) Scale(ctx context.Context, c client.Client, replicas int32) error {
	md := &clusterv1.MachineDeployment{ObjectMeta: p.meta(p.Name)}
	err := Patch(ctx, c, md, func() { md.Spec.Replicas = ptr.To(replicas) })
	if err != nil {
		return fmt.Errorf("scale MachineDeployment %s to %d: %w", p.Name, replicas, err)
	}
	return nil
}

// Roll creates a new template and points the pool at it, so that its machines are replaced.
func (p Pool) Roll(ctx context.Context, c client.Client, template string, machine infrav1.SimulatedMachine) error {
	if err := Create(ctx, c, p.Template(template, machine)); err != nil {
		return err
	}
	md := &clusterv1.MachineDeployment{ObjectMeta: p.meta(p.Name)}
	err := Patch(ctx, c, md, func() { md.Spec.Template.Spec.InfrastructureRef.Name = template })
	if err != nil {
		return fmt.Errorf("roll MachineDeployment %s to template %s: %w", p.Name, template, err)
	}
	return nil
}

// Delete deletes objects. It ignores those that do not exist.
func Delete(ctx context.Context, c client.Client, objects ...client.Object) error {
	for _, o := range objects {
		err := retry(ctx, func(ctx context.Context) error { return c.Delete(ctx, o) })
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// Patch reads an object, calls change, and writes the difference.
func Patch(ctx context.Context, c client.Client, o client.Object, change func()) error {
	if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return err
	}
	before, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object", o)
	}
	change()
	return retry(ctx, func(ctx context.Context) error { return c.Patch(ctx, o, client.MergeFrom(before)) })
}
