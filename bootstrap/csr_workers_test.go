// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/drover-io/drover/bootstrap/token"
	"github.com/drover-io/drover/internal/fairqueue"
)

// tokenReaders is a ClusterCache. Its API servers know all certificate requests, and read tokens as
// read says.
type tokenReaders struct {
	clustercache.ClusterCache
	workload client.WithWatch
	read     func(ctx context.Context, cluster client.ObjectKey) error

	mu      sync.Mutex
	reading map[client.ObjectKey]int
	reads   map[client.ObjectKey]int
}

func (c *tokenReaders) GetReader(context.Context, client.ObjectKey) (client.Reader, error) {
	return c.workload, nil
}

func (c *tokenReaders) GetUncachedClient(_ context.Context, cluster client.ObjectKey) (client.Client, error) {
	return interceptor.NewClient(c.workload, interceptor.Funcs{
		Get: func(ctx context.Context, inner client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, ok := o.(*corev1.Secret); !ok {
				return inner.Get(ctx, key, o, opts...)
			}
			c.count(cluster, 1)
			defer c.count(cluster, -1)
			return c.read(ctx, cluster)
		},
	}), nil
}

func (c *tokenReaders) count(cluster client.ObjectKey, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading[cluster] += n
	c.reads[cluster] += max(n, 0)
}

// held returns how many workers a cluster holds.
func (c *tokenReaders) held(cluster client.ObjectKey) int {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reading[cluster]
}

// TestOneClusterDoesNotHoldAllApprovers: an API server that lists requests of tokens, and does not
// answer reads of those tokens, holds at most half of the approver's workers while another tenant's
// requests wait, and one worker as soon as it is known to hang. Its other requests stay in the
// queue: they are not tried meanwhile.
func TestOneClusterDoesNotHoldAllApprovers(t *testing.T) {
	for _, workers := range []int{50, 2} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { holdApprovers(t, workers) })
		})
	}
}

func holdApprovers(t *testing.T, workers int) {
	g := NewWithT(t)
	hostile, honest := testCluster(), testCluster()
	honest.Namespace, honest.Name = "other", "green"
	bad, good := client.ObjectKeyFromObject(hostile), client.ObjectKeyFromObject(honest)
	objects := []client.Object{hostile, honest}
	var requests []CSRRequest
	for _, cluster := range []client.ObjectKey{bad, good} {
		for i := range 2 * workers {
			name := fmt.Sprintf("csr-%s-%d", cluster.Name, i)
			objects = append(objects, &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: certificatesv1.CertificateSigningRequestSpec{
					SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Username: "system:bootstrap:abcdef", Groups: []string{token.Group},
					Request: []byte("x"),
				},
			})
			requests = append(requests, CSRRequest{Cluster: cluster, Name: name})
		}
	}
	var hangs sync.Map // cluster → true, as the forwarder reports it
	answer := make(chan struct{})
	clusters := &tokenReaders{workload: fakeClient(t, interceptor.Funcs{}, objects...), reading: map[client.ObjectKey]int{},
		reads: map[client.ObjectKey]int{}}
	clusters.read = func(ctx context.Context, cluster client.ObjectKey) error {
		if cluster == good { // busy, but it answers
			<-answer
			return context.Canceled
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // ClusterCache's clients
		defer cancel()
		<-ctx.Done()
		hangs.Store(cluster, true)
		return ctx.Err()
	}
	options := controller.TypedOptions[CSRRequest]{
		SkipNameValidation:      ptr.To(true),
		MaxConcurrentReconciles: workers,
		Reconciler:              &CSRReconciler{Client: clusters.workload, ClusterCache: clusters},
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[CSRRequest](time.Hour, time.Hour),
		NewQueue: func(name string, limiter workqueue.TypedRateLimiter[CSRRequest]) workqueue.TypedRateLimitingInterface[CSRRequest] {
			return fairqueue.New(name, limiter, fairqueue.Rules[CSRRequest]{
				Workers:  workers,
				TargetOf: func(r CSRRequest) types.NamespacedName { return r.Cluster },
				Hangs:    func(cluster types.NamespacedName) bool { _, ok := hangs.Load(cluster); return ok },
			})
		},
	}
	approver, err := controller.NewTypedUnmanaged(fmt.Sprintf("approver-%d", workers), options)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(approver.Watch(source.TypedFunc[CSRRequest](func(_ context.Context,
		queue workqueue.TypedRateLimitingInterface[CSRRequest]) error {
		for _, r := range requests {
			queue.Add(r)
		}
		return nil
	}))).To(Succeed())
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = approver.Start(ctx) })
	g.Expect(clusters.held(bad)).To(Equal(workers/2), "the hostile cluster, before it is known to hang")
	g.Expect(clusters.held(good)).To(Equal(workers / 2))
	time.Sleep(11 * time.Second)
	g.Expect(clusters.held(bad)).To(Equal(1), "the hostile cluster, which hangs")
	g.Expect(clusters.held(good)).To(Equal(workers - 1))
	close(answer)
	synctest.Wait()
	g.Expect(clusters.reads[good]).To(Equal(2*workers), "all requests of the honest cluster were looked at")
	g.Expect(clusters.reads[bad]).To(Equal(workers/2+1), "no request is tried while its cluster hangs")
	stop()
	running.Wait()
}
