// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/bootstrap/render"
)

const (
	// Every API server publishes here whose client certificates it accepts. It connects to kubelets
	// with a certificate of the same authority (Kubernetes,
	// pkg/controlplane/controller/clusterauthenticationtrust).
	publishedCAName, publishedCAKey = "extension-apiserver-authentication", "client-ca-file"
	// clientCAAge is how long an authority that was read is used.
	clientCAAge = 10 * time.Minute
	// maxClientCA is the most that a cluster's authority may take of the user data, which have
	// little room.
	maxClientCA = 8 << 10
)

// clientCAs remembers the authorities that API servers publish. The zero value is empty.
type clientCAs struct{ byCluster sync.Map } // types.UID → publishedCA

type publishedCA struct {
	pem []byte // nil if there is none
	at  time.Time
}

func (c *clientCAs) forget(cluster types.UID) { c.byCluster.Delete(cluster) }

// get returns the certificate authority of the API server's client certificate, or nil if that is
// not known: nobody publishes it, or the kubeconfig does not permit to read it. The kubelet then
// trusts the kubeconfig's authority, which is right in clusters that have only one.
func (c *clientCAs) get(ctx context.Context, cluster *clusterv1.Cluster, workload client.Client) ([]byte, error) {
	if known, ok := c.byCluster.Load(cluster.UID); ok && time.Since(known.(publishedCA).at) < clientCAAge {
		return known.(publishedCA).pem, nil
	}
	published := &corev1.ConfigMap{}
	err := workload.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: publishedCAName}, published)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("reading the ConfigMap %q of the workload cluster: %w", publishedCAName, err)
	}
	var ca []byte
	if text := published.Data[publishedCAKey]; text != "" && len(text) <= maxClientCA {
		if ca, err = render.ParseCA([]byte(text)); err != nil {
			ctrl.LoggerFrom(ctx).Info("Ignored the authority for clients that the API server publishes", "reason", err.Error())
		}
	}
	c.byCluster.Store(cluster.UID, publishedCA{ca, time.Now()})
	return ca, nil
}
