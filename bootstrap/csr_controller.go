// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/drover-io/drover/bootstrap/csr"
	"github.com/drover-io/drover/internal/conflict"
	"github.com/drover-io/drover/internal/connection"
	"github.com/drover-io/drover/internal/naming"
	"github.com/drover-io/drover/internal/predicates"
	"github.com/drover-io/drover/internal/record"
)

const (
	// machineByNode indexes Machines by the name of their Node, or by the names that the Node may
	// get.
	machineByNode = "bootstrap.drover/node"
	// csrSoon is when to check again a request that lacks something that is about to come.
	csrSoon = 2 * time.Second
	// csrLater is when to check again a request that probably stays as it is.
	csrLater = time.Minute
	// csrGrace is how long a request may lack something before an Event says so.
	csrGrace = time.Minute
)

// CSRRequest names one CertificateSigningRequest of one workload cluster.
type CSRRequest struct {
	Cluster client.ObjectKey
	Name    string
}

// CSRReconciler approves the certificates that kubelets of Drover's machines request: the first
// client certificate with the machine's own token, its renewal, and the serving certificate. It
// leaves a request that does not fit the machine to a person or another approver, and emits an
// Event with the reason. It never denies.
//
// It costs one write per certificate.
type CSRReconciler struct {
	// Client reads Machines, Clusters and DroverMachines from the manager's cache.
	Client client.Client
	// ClusterCache connects to workload clusters.
	ClusterCache clustercache.ClusterCache
	// APIServer returns the host in a Cluster's kubeconfig, which may be another than the Cluster's
	// endpoint, or "" if none is known.
	APIServer func(cluster client.ObjectKey) string
	// Watches are those of all controllers in workload clusters. They end with their Cluster.
	Watches *connection.Watches
	// Recorder writes Events, on the Machine if it is known, or else on the Cluster.
	Recorder events.EventRecorder
	// Log gets one line for each decision.
	Log logr.Logger
	// WatchFilterValue, if set, restricts the controller to Clusters whose label
	// cluster.x-k8s.io/watch-filter has this value.
	WatchFilterValue string

	controller controller.TypedController[CSRRequest]
	reported   sync.Map // CSRRequest → report: one Event each
	caches     sync.Map // client.ObjectKey of a Cluster → cache.Cache that watches its certificate requests
	services   sync.Map // client.ObjectKey of a Cluster → apiService
}

// report is what an Event said about a request that was not approved.
type report struct {
	why     string
	machine client.ObjectKey // empty if the Machine is not known
}

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machines,verbs=get;list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=drovermachines,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers two controllers. One decides on requests. The other adds the watch for
// requests to each workload cluster when it is connected. options applies to the first.
func (r *CSRReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.TypedOptions[CSRRequest]) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &clusterv1.Machine{}, machineByNode, nodeOfMachine); err != nil {
		return fmt.Errorf("indexing Machines by Node: %w", err)
	}
	options.Reconciler = conflict.Retried(r)
	c, err := controller.NewTyped("csr", mgr, options)
	if err != nil {
		return fmt.Errorf("setting up the approver: %w", err)
	}
	r.controller = c

	watcher, err := controller.New("csr-watch", mgr, controller.Options{Reconciler: conflict.Retried(reconcile.Func(r.watch))})
	if err != nil {
		return fmt.Errorf("setting up the approver's watches: %w", err)
	}
	if err := watcher.Watch(r.ClusterCache.GetClusterSource("csr-watch", clusterItself)); err != nil {
		return fmt.Errorf("watching connections to workload clusters: %w", err)
	}
	// This watch finds Clusters that get the watch-filter label late, or become Drover's, or are
	// deleted. The watch above finds Clusters that are connected late, the one below those of
	// others, when they get their first machine of Drover's.
	err = watcher.Watch(source.Kind(mgr.GetCache(), &clusterv1.Cluster{},
		handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, c *clusterv1.Cluster) []ctrl.Request { return clusterItself(ctx, c) }),
		predicate.TypedFuncs[*clusterv1.Cluster]{
			UpdateFunc: func(e event.TypedUpdateEvent[*clusterv1.Cluster]) bool {
				return e.ObjectOld.Labels[clusterv1.WatchLabel] != e.ObjectNew.Labels[clusterv1.WatchLabel] ||
					e.ObjectOld.Spec.InfrastructureRef != e.ObjectNew.Spec.InfrastructureRef ||
					e.ObjectOld.Spec.ControlPlaneRef != e.ObjectNew.Spec.ControlPlaneRef
			},
		}))
	if err != nil {
		return fmt.Errorf("watching Clusters: %w", err)
	}
	err = watcher.Watch(source.Kind(mgr.GetCache(), &clusterv1.Machine{}, handler.TypedEnqueueRequestsFromMapFunc(clusterOfMachine),
		predicate.TypedFuncs[*clusterv1.Machine]{UpdateFunc: func(event.TypedUpdateEvent[*clusterv1.Machine]) bool { return false }}))
	if err != nil {
		return fmt.Errorf("watching Machines: %w", err)
	}
	return nil
}

func clusterItself(_ context.Context, o client.Object) []ctrl.Request {
	return []ctrl.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
}

// nodeOfMachine is the index function of machineByNode.
func nodeOfMachine(o client.Object) []string {
	machine, ok := o.(*clusterv1.Machine)
	if !ok {
		return nil
	}
	if machine.Status.NodeRef.IsDefined() {
		return []string{machine.Status.NodeRef.Name}
	}
	names := csr.Machine{Addresses: machine.Status.Addresses}.HostNames()
	return append(names, naming.NodeName(machine.Name))
}

// watch adds the watch for requests to a connected workload cluster that is Drover's or has a
// machine of Drover's. ClusterCache drops the watch when the connection is lost, and sends an event
// for a new connection.
func (r *CSRReconciler) watch(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	cluster := &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, req.NamespacedName, cluster); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !predicates.Watched(cluster, r.WatchFilterValue) {
		return ctrl.Result{}, nil
	}
	if drovers, err := r.isDroversCluster(ctx, cluster); !drovers || err != nil {
		return ctrl.Result{}, err
	}
	key := req.NamespacedName
	watcher := clustercache.NewWatcher(clustercache.TypedWatcherOptions[*certificatesv1.CertificateSigningRequest, CSRRequest]{
		Name:    "drover-csr",
		Watcher: connection.Until(r.Watches, key, "drover-csr", r.controller),
		Kind:    &certificatesv1.CertificateSigningRequest{},
		EventHandler: handler.TypedEnqueueRequestsFromMapFunc(
			func(_ context.Context, request *certificatesv1.CertificateSigningRequest) []CSRRequest {
				name := CSRRequest{Cluster: key, Name: request.Name}
				if isDecided(request) { // each causes a few more events: when it gets its certificate, and when it is deleted
					r.reported.Delete(name)
					return nil
				}
				return []CSRRequest{name}
			}),
		Predicates: []predicate.TypedPredicate[*certificatesv1.CertificateSigningRequest]{predicate.NewTypedPredicateFuncs(isKubeletRequest)},
	})
	err := r.ClusterCache.Watch(ctx, key, cacheKeeper{watcher, func(c cache.Cache) {
		r.caches.Store(key, c)
		r.forgetReports(key) // it shows which requests there are now
	}})
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		r.caches.Delete(key)
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("watching the certificate requests of %s: %w", key, err)
	}
	return ctrl.Result{}, nil
}

// cacheKeeper is a Watcher that remembers the cache in which it watches.
type cacheKeeper struct {
	clustercache.Watcher
	keep func(cache.Cache)
}

// Watch starts the watch.
func (w cacheKeeper) Watch(c cache.Cache) error {
	w.keep(c)
	return w.Watcher.Watch(c)
}

// forget drops the state of a Cluster that is gone.
func (r *CSRReconciler) forget(cluster client.ObjectKey) {
	r.Watches.End(cluster)
	r.caches.Delete(cluster)
	r.services.Delete(cluster)
	r.forgetReports(cluster)
}

func (r *CSRReconciler) forgetReports(cluster client.ObjectKey) {
	r.reported.Range(func(key, _ any) bool {
		if request, ok := key.(CSRRequest); ok && request.Cluster == cluster {
			r.reported.Delete(key)
		}
		return true
	})
}

// isKubeletRequest passes requests to the two signers for kubelet certificates.
func isKubeletRequest(request *certificatesv1.CertificateSigningRequest) bool {
	return request.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName ||
		request.Spec.SignerName == certificatesv1.KubeletServingSignerName
}

func isDecided(request *certificatesv1.CertificateSigningRequest) bool {
	return len(request.Status.Certificate) > 0 || slices.ContainsFunc(request.Status.Conditions, isDecision)
}

func isDecision(c certificatesv1.CertificateSigningRequestCondition) bool {
	return c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied ||
		c.Type == certificatesv1.CertificateFailed
}

// verdict is the decision on a request. The zero verdict leaves it alone without an Event.
type verdict struct {
	approve bool
	// why says why the request is left alone.
	why string
	// recheckAfter is when to check again, or 0 for never. delayEvent suppresses the Event until
	// csrGrace is over.
	recheckAfter time.Duration
	delayEvent   bool
	machine      *clusterv1.Machine
}

// reject is for problems that time does not solve.
func reject(machine *clusterv1.Machine, why string) verdict {
	return verdict{machine: machine, why: why}
}

// retryLater is for problems that may be solved later, such as an address that the cloud has not
// reported yet.
func retryLater(machine *clusterv1.Machine, why string) verdict {
	return verdict{machine: machine, why: why, recheckAfter: csrLater}
}

// pending is for something that comes without any action.
func pending(machine *clusterv1.Machine, why string) verdict {
	return verdict{machine: machine, why: why, recheckAfter: csrSoon, delayEvent: true}
}

// Reconcile decides on one request.
func (r *CSRReconciler) Reconcile(ctx context.Context, req CSRRequest) (ctrl.Result, error) {
	cluster := &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, req.Cluster, cluster); err != nil {
		r.reported.Delete(req)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	cached, err := r.ClusterCache.GetReader(ctx, req.Cluster)
	if err != nil {
		return ctrl.Result{}, unlessGone(err)
	}
	request := &certificatesv1.CertificateSigningRequest{}
	if err := cached.Get(ctx, client.ObjectKey{Name: req.Name}, request); err != nil {
		if apierrors.IsNotFound(err) {
			r.reported.Delete(req)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("reading a certificate request: %w", err)
	}
	if !isKubeletRequest(request) || isDecided(request) {
		r.reported.Delete(req)
		return ctrl.Result{}, nil
	}
	v, err := r.judge(ctx, cluster, cached, request)
	if err != nil {
		return ctrl.Result{}, unlessGone(err)
	}
	if v.approve {
		return r.approve(ctx, req, request, v)
	}
	return r.reportNotApproved(cluster, req, request, v), nil
}

// unlessGone drops the error of a lost connection. The next connection adds the watch again, which
// reports all requests.
func unlessGone(err error) error {
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return nil
	}
	return err
}

func (r *CSRReconciler) approve(ctx context.Context, req CSRRequest, request *certificatesv1.CertificateSigningRequest,
	v verdict) (ctrl.Result, error) {
	workload, err := r.ClusterCache.GetUncachedClient(ctx, req.Cluster)
	if err != nil {
		return ctrl.Result{}, unlessGone(err)
	}
	request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, LastUpdateTime: metav1.Now(),
		Reason: "DroverApproved", Message: "Approved by Drover: requester, node name and usages match the machine.",
	})
	err = workload.SubResource("approval").Update(ctx, request)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // gone, or the watch delivers the newer version
		return ctrl.Result{RequeueAfter: csrSoon}, nil
	case err != nil:
		return ctrl.Result{}, fmt.Errorf("approving a certificate request: %w", err)
	}
	r.reported.Delete(req)
	r.record("Approved the certificate request", req, request, v)
	return ctrl.Result{}, nil
}

// reportNotApproved emits one Event that says why a request is left alone.
func (r *CSRReconciler) reportNotApproved(cluster *clusterv1.Cluster, req CSRRequest, request *certificatesv1.CertificateSigningRequest,
	v verdict) ctrl.Result {
	result := ctrl.Result{RequeueAfter: v.recheckAfter}
	if v.why == "" || (v.delayEvent && time.Since(request.CreationTimestamp.Time) < csrGrace) {
		return result
	}
	if v.delayEvent {
		result.RequeueAfter = csrLater
	}
	event := report{why: v.why}
	var regarding client.Object = cluster
	if v.machine != nil {
		regarding, event.machine = v.machine, client.ObjectKeyFromObject(v.machine)
	}
	if _, reported := r.reported.Swap(req, event); reported {
		return result
	}
	r.record("The certificate request is not approved", req, request, v)
	r.Recorder.Eventf(regarding, nil, corev1.EventTypeWarning, "CertificateNotApproved", "ApproveCertificate",
		"Certificate request %s in the workload cluster was not approved: %s", request.Name, v.why)
	return result
}

// record writes a line about a request.
func (r *CSRReconciler) record(what string, req CSRRequest, request *certificatesv1.CertificateSigningRequest, v verdict) {
	machine := ""
	if v.machine != nil {
		machine = record.Key(v.machine.Namespace, v.machine.Spec.InfrastructureRef.Name)
	}
	r.Log.Info(what, record.Cluster, req.Cluster.String(), record.Machine, machine, record.Certificate, request.Name, record.Message, v.why)
}
