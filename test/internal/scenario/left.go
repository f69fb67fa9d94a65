// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// Left counts the objects of machines in both clusters.
type Left struct {
	Machines, DroverMachines, DroverConfigs int
	// DataSecrets hold user data. BootstrapTokens and Nodes are in the workload cluster.
	DataSecrets, BootstrapTokens, Nodes int
}

func (l Left) String() string {
	return fmt.Sprintf("%d Machines, %d DroverMachines, %d DroverConfigs, %d data Secrets, %d bootstrap tokens, %d Nodes",
		l.Machines, l.DroverMachines, l.DroverConfigs, l.DataSecrets, l.BootstrapTokens, l.Nodes)
}

// Left counts the objects of the cluster's machines by live reads.
func (a Adopted) Left(ctx context.Context, management, workload client.Reader) (Left, error) {
	var l Left
	in := client.InNamespace(a.Namespace)
	for _, kind := range []struct {
		n    *int
		list client.ObjectList
	}{
		{&l.Machines, &clusterv1.MachineList{}},
		{&l.DroverMachines, &infrav1.DroverMachineList{}},
		{&l.DroverConfigs, &bootstrapv1.DroverConfigList{}},
	} {
		var err error
		if *kind.n, _, err = count(ctx, management, kind.list, in); err != nil {
			return l, err
		}
	}
	secrets := &corev1.SecretList{}
	if err := management.List(ctx, secrets, in, client.HasLabels{clusterv1.ClusterNameLabel}); err != nil {
		return l, fmt.Errorf("count data Secrets: %w", err)
	}
	for i := range secrets.Items {
		if owner := metav1.GetControllerOf(&secrets.Items[i]); owner != nil && owner.Kind == "DroverConfig" {
			l.DataSecrets++
		}
	}
	if err := workload.List(ctx, secrets, client.InNamespace(metav1.NamespaceSystem)); err != nil {
		return l, fmt.Errorf("count bootstrap tokens: %w", err)
	}
	for i := range secrets.Items {
		if secrets.Items[i].Type == bootstrapapi.SecretTypeBootstrapToken {
			l.BootstrapTokens++
		}
	}
	var err error
	l.Nodes, _, err = count(ctx, workload, &corev1.NodeList{})
	return l, err
}

func eachItem(list client.ObjectList, do func(metav1.Object)) error {
	return meta.EachListItem(list, func(o runtime.Object) error {
		accessor, err := meta.Accessor(o)
		if err == nil {
			do(accessor)
		}
		return err
	})
}
