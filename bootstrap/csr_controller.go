// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/bootstrap/render"
)

const (
	// machineByNode indexes Machines by the name of the Node that they are, or by those that it may have.
	machineByNode = "bootstrap.drover/node"
	// csrSoon is how soon a request is looked at again that misses something which is about to come.
	csrSoon = 2 * time.Second
	// csrLater is the same for one that will probably stay as it is.
	csrLater = time.Minute
	// csrGrace is how long a request may miss something before an Event says so.
	csrGrace = time.Minute
)

// CSRRequest names one CertificateSigningRequest of one workload cluster.
type CSRRequest struct {
	Cluster client.ObjectKey
	Name    string
}

// CSRReconciler approves the certificates that kubelets of our machines ask for: the first client certificate with the
// machine's own token, its renewal, and the serving certificate. A request that does not fit the machine is left alone,
// for a person or another approver, and an Event says why. It never denies.
//
// It costs one write for each certificate.
type CSRReconciler struct {
	// Client reads Machines, Clusters and CloudMachines from the manager's cache.
	Client client.Client
	// ClusterCache connects to workload clusters.
	ClusterCache clustercache.ClusterCache
	// Recorder writes Events, on the Machine where one is known and else on the Cluster.
	Recorder events.EventRecorder
	// WatchFilterValue, where set, leaves alone Clusters without the label cluster.x-k8s.io/watch-filter of this value.
	WatchFilterValue string

	controller controller.TypedController[CSRRequest]
	reported   sync.Map // CSRRequest → report: one Event for each
}

// report is what was said of a request that is left alone.
type report struct {
	why     string
	machine client.ObjectKey // empty where the Machine is not known
}

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machines,verbs=get;list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=cloudmachines,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers two controllers: one that decides on requests, and one that adds the watch of requests to
// each workload cluster when it is connected. options applies to the first.
func (r *CSRReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.TypedOptions[CSRRequest]) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &clusterv1.Machine{}, machineByNode, nodeOfMachine); err != nil {
		return fmt.Errorf("indexing Machines by Node: %w", err)
	}
	options.Reconciler = r
	c, err := controller.NewTyped("csr", mgr, options)
	if err != nil {
		return fmt.Errorf("setting up the approver: %w", err)
	}
	r.controller = c

	watcher, err := controller.New("csr-watch", mgr, controller.Options{Reconciler: reconcile.Func(r.watch)})
	if err != nil {
		return fmt.Errorf("setting up the approver's watches: %w", err)
	}
	if err := watcher.Watch(r.ClusterCache.GetClusterSource("csr-watch", clusterItself)); err != nil {
		return fmt.Errorf("watching connections to workload clusters: %w", err)
	}
	// A Cluster that gets the watch-filter label late is seen here; one that is connected late, above.
	err = watcher.Watch(source.Kind(mgr.GetCache(), &clusterv1.Cluster{},
		handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, c *clusterv1.Cluster) []ctrl.Request { return clusterItself(ctx, c) }),
		predicate.TypedFuncs[*clusterv1.Cluster]{
			DeleteFunc: func(event.TypedDeleteEvent[*clusterv1.Cluster]) bool { return false },
			UpdateFunc: func(e event.TypedUpdateEvent[*clusterv1.Cluster]) bool {
				return e.ObjectOld.Labels[clusterv1.WatchLabel] != e.ObjectNew.Labels[clusterv1.WatchLabel]
			},
		}))
	if err != nil {
		return fmt.Errorf("watching Clusters: %w", err)
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
	return append(hostNames(machine.Status.Addresses), render.NodeName(machine.Name))
}

// watch adds the watch of requests to a connected workload cluster. ClusterCache drops it when the connection is lost,
// and tells us when there is a new one.
func (r *CSRReconciler) watch(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	cluster := &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, req.NamespacedName, cluster); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if r.WatchFilterValue != "" && cluster.Labels[clusterv1.WatchLabel] != r.WatchFilterValue {
		return ctrl.Result{}, nil
	}
	key := req.NamespacedName
	err := r.ClusterCache.Watch(ctx, key, clustercache.NewWatcher(clustercache.TypedWatcherOptions[*certificatesv1.CertificateSigningRequest, CSRRequest]{
		Name:    "drover-csr",
		Watcher: r.controller,
		Kind:    &certificatesv1.CertificateSigningRequest{},
		EventHandler: handler.TypedEnqueueRequestsFromMapFunc(
			func(_ context.Context, csr *certificatesv1.CertificateSigningRequest) []CSRRequest {
				request := CSRRequest{Cluster: key, Name: csr.Name}
				if decided(csr) { // every one is seen a few more times after that: with its certificate, and when it goes
					r.reported.Delete(request)
					return nil
				}
				return []CSRRequest{request}
			}),
		Predicates: []predicate.TypedPredicate[*certificatesv1.CertificateSigningRequest]{predicate.NewTypedPredicateFuncs(kubelets)},
	}))
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("watching the certificate requests of %s: %w", key, err)
	}
	return ctrl.Result{}, nil
}

// kubelets lets through requests to the two signers of kubelets' certificates.
func kubelets(csr *certificatesv1.CertificateSigningRequest) bool {
	return csr.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName || csr.Spec.SignerName == certificatesv1.KubeletServingSignerName
}

func decided(csr *certificatesv1.CertificateSigningRequest) bool {
	return len(csr.Status.Certificate) > 0 || slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed
	})
}

// verdict is what becomes of a request. The zero verdict leaves it alone without a word: it is not our business.
type verdict struct {
	approve bool
	// why the request is left alone.
	why string
	// again is when to look again, 0 for never; patient keeps silent about why until csrGrace is over.
	again   time.Duration
	patient bool
	machine *clusterv1.Machine
}

// refuse is for what no time will heal.
func refuse(machine *clusterv1.Machine, why string) verdict {
	return verdict{machine: machine, why: why}
}

// doubt is for what another look may heal, such as an address that the cloud tells of later.
func doubt(machine *clusterv1.Machine, why string) verdict {
	return verdict{machine: machine, why: why, again: csrLater}
}

// wait is for what comes by itself in the course of things.
func wait(machine *clusterv1.Machine, why string) verdict {
	return verdict{machine: machine, why: why, again: csrSoon, patient: true}
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
	csr := &certificatesv1.CertificateSigningRequest{}
	if err := cached.Get(ctx, client.ObjectKey{Name: req.Name}, csr); err != nil {
		if apierrors.IsNotFound(err) {
			r.reported.Delete(req)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("reading a certificate request: %w", err)
	}
	if !kubelets(csr) || decided(csr) {
		r.reported.Delete(req)
		return ctrl.Result{}, nil
	}
	v, err := r.judge(ctx, cluster, cached, csr)
	if err != nil {
		return ctrl.Result{}, unlessGone(err)
	}
	if v.approve {
		return r.approve(ctx, req, csr)
	}
	return r.leave(cluster, req, csr, v), nil
}

// unlessGone drops the error of a lost connection: the watch is added again with the next one, and tells of all requests.
func unlessGone(err error) error {
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return nil
	}
	return err
}

func (r *CSRReconciler) approve(ctx context.Context, req CSRRequest, csr *certificatesv1.CertificateSigningRequest) (ctrl.Result, error) {
	workload, err := r.ClusterCache.GetUncachedClient(ctx, req.Cluster)
	if err != nil {
		return ctrl.Result{}, unlessGone(err)
	}
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, LastUpdateTime: metav1.Now(),
		Reason: "DroverApproved", Message: "It fits the machine that it is for.",
	})
	err = workload.SubResource("approval").Update(ctx, csr)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // gone, or the watch brings the newer one
		return ctrl.Result{RequeueAfter: csrSoon}, nil
	case err != nil:
		return ctrl.Result{}, fmt.Errorf("approving a certificate request: %w", err)
	}
	r.reported.Delete(req)
	return ctrl.Result{}, nil
}

// leave reports why a request is left alone, once.
func (r *CSRReconciler) leave(cluster *clusterv1.Cluster, req CSRRequest, csr *certificatesv1.CertificateSigningRequest, v verdict) ctrl.Result {
	result := ctrl.Result{RequeueAfter: v.again}
	if v.why == "" || (v.patient && time.Since(csr.CreationTimestamp.Time) < csrGrace) {
		return result
	}
	if v.patient {
		result.RequeueAfter = csrLater
	}
	said := report{why: v.why}
	var regarding client.Object = cluster
	if v.machine != nil {
		regarding, said.machine = v.machine, client.ObjectKeyFromObject(v.machine)
	}
	if _, again := r.reported.Swap(req, said); again {
		return result
	}
	r.Recorder.Eventf(regarding, nil, corev1.EventTypeWarning, "CertificateNotApproved", "ApproveCertificate",
		"The certificate request %s in the workload cluster is left alone: %s", csr.Name, v.why)
	return result
}

// judge finds the machine behind a request and measures the request by it.
func (r *CSRReconciler) judge(ctx context.Context, cluster *clusterv1.Cluster, cached client.Reader, csr *certificatesv1.CertificateSigningRequest) (verdict, error) {
	who := requesterOf(csr)
	serving := csr.Spec.SignerName == certificatesv1.KubeletServingSignerName
	switch {
	case who.tokenID != "" && !serving:
		return r.judgeFirst(ctx, cluster, cached, csr, who.tokenID)
	case who.node != "" && !serving:
		return r.judgeRenewal(ctx, cluster, csr, who.node)
	case who.node != "":
		return r.judgeServing(ctx, cluster, cached, csr, who.node)
	}
	// Another bootstrap method of the same cluster has an approver of its own; what it leaves is worth an Event.
	return verdict{why: "it was sent neither with a bootstrap token of Drover nor by a Node", again: csrLater, patient: true}, nil
}

// judgeFirst is for the first certificate of a machine, which it asks for with its token.
func (r *CSRReconciler) judgeFirst(ctx context.Context, cluster *clusterv1.Cluster, cached client.Reader, csr *certificatesv1.CertificateSigningRequest, tokenID string) (verdict, error) {
	workload, err := r.ClusterCache.GetUncachedClient(ctx, client.ObjectKeyFromObject(cluster))
	if err != nil {
		return verdict{}, err
	}
	token := &corev1.Secret{}
	key := client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: bootstraputil.BootstrapTokenSecretName(tokenID)}
	if err := workload.Get(ctx, key, token); err != nil {
		if apierrors.IsNotFound(err) {
			return refuse(nil, "the bootstrap token that it was sent with is gone"), nil
		}
		return verdict{}, fmt.Errorf("reading the bootstrap token of a certificate request: %w", err)
	}
	if token.Labels[TokenConfigLabel] == "" || token.Annotations[TokenClusterAnnotation] != client.ObjectKeyFromObject(cluster).String() {
		return refuse(nil, "the bootstrap token that it was sent with was not made for a machine of this Cluster"), nil
	}
	machine, why, err := r.machineOfToken(ctx, cluster, token.Annotations[TokenMachineAnnotation])
	if err != nil || why != "" {
		return refuse(nil, why), err
	}
	cloud, err := r.cloudMachine(ctx, machine)
	if err != nil {
		return verdict{}, err
	}
	node, pinned := token.Annotations[TokenNodeAnnotation]
	if !pinned {
		if node = hostNameIn(csr, addressesOf(machine, cloud)); node == "" {
			return wait(machine, "it is for none of the host names that the cloud tells of the machine"), nil
		}
	}
	switch {
	case !machine.DeletionTimestamp.IsZero():
		return refuse(machine, "the Machine is being deleted"), nil
	case machine.Status.NodeRef.IsDefined() && machine.Status.NodeRef.Name != node:
		return refuse(machine, "the Machine is another Node already"), nil
	}
	if why := checkClient(csr, facts{node: node}); why != "" {
		return refuse(machine, why), nil
	}
	if machine.Status.NodeRef.IsDefined() {
		return verdict{approve: true}, nil
	}
	ours, there, err := nodeIsMachine(ctx, cached, node, machine, cloud)
	if err != nil {
		return verdict{}, err
	}
	if there && !ours { // else whoever has the token could become a Node that was there before the machine
		return wait(machine, fmt.Sprintf("a Node %q is there already, and it is not known to be this Machine's", node)), nil
	}
	return verdict{approve: true}, nil
}

func (r *CSRReconciler) machineOfToken(ctx context.Context, cluster *clusterv1.Cluster, name string) (*clusterv1.Machine, string, error) {
	const other = "the bootstrap token that it was sent with names no Machine of this Cluster"
	prefix := cluster.Namespace + "/"
	if len(name) <= len(prefix) || name[:len(prefix)] != prefix {
		return nil, other, nil
	}
	machine := &clusterv1.Machine{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name[len(prefix):]}, machine)
	if apierrors.IsNotFound(err) || (err == nil && machine.Spec.ClusterName != cluster.Name) {
		return nil, other, nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("reading the Machine of a certificate request: %w", err)
	}
	return machine, "", nil
}

// judgeRenewal is for the client certificate that a Node asks for in place of its old one.
func (r *CSRReconciler) judgeRenewal(ctx context.Context, cluster *clusterv1.Cluster, csr *certificatesv1.CertificateSigningRequest, node string) (verdict, error) {
	machine, err := r.machineOfNode(ctx, cluster, node)
	if err != nil {
		return verdict{}, err
	}
	switch {
	case machine == nil:
		return verdict{why: fmt.Sprintf("the Node %q is no Machine's", node), again: csrLater, patient: true}, nil
	case !machine.DeletionTimestamp.IsZero():
		return refuse(machine, "the Machine is being deleted"), nil
	case !machine.Status.NodeRef.IsDefined():
		return wait(machine, "the Machine is not known to be this Node yet"), nil
	}
	if why := checkClient(csr, facts{node: node}); why != "" {
		return refuse(machine, why), nil
	}
	return verdict{approve: true}, nil
}

// judgeServing is for the certificate that a kubelet serves its own API with.
func (r *CSRReconciler) judgeServing(ctx context.Context, cluster *clusterv1.Cluster, cached client.Reader, csr *certificatesv1.CertificateSigningRequest, node string) (verdict, error) {
	machine, err := r.machineOfNode(ctx, cluster, node)
	if err != nil {
		return verdict{}, err
	}
	if machine == nil {
		return verdict{why: fmt.Sprintf("the Node %q is no Machine's", node), again: csrLater, patient: true}, nil
	}
	cloud, err := r.cloudMachine(ctx, machine)
	if err != nil {
		return verdict{}, err
	}
	ours, there, err := nodeIsMachine(ctx, cached, node, machine, cloud)
	if err != nil {
		return verdict{}, err
	}
	if !there || !ours {
		return wait(machine, fmt.Sprintf("the Node %q is not there, or not known to be this Machine's", node)), nil
	}
	addresses := addressesOf(machine, cloud)
	if len(addresses) == 0 {
		return wait(machine, "the machine's addresses are not known yet"), nil
	}
	if why := checkServing(csr, facts{node: node, addresses: addresses}); why != "" {
		return doubt(machine, why), nil
	}
	return verdict{approve: true}, nil
}

// machineOfNode returns the Machine of this Cluster that is that Node or, before that is known, will have its name. More
// than one is none.
func (r *CSRReconciler) machineOfNode(ctx context.Context, cluster *clusterv1.Cluster, node string) (*clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	if err := r.Client.List(ctx, list, client.InNamespace(cluster.Namespace), client.MatchingFields{machineByNode: node}); err != nil {
		return nil, fmt.Errorf("finding the Machine of a Node: %w", err)
	}
	var found *clusterv1.Machine
	for i := range list.Items {
		if list.Items[i].Spec.ClusterName != cluster.Name {
			continue
		}
		if found != nil {
			return nil, nil
		}
		found = &list.Items[i]
	}
	return found, nil
}

// nodeIsMachine tells whether the Node is there, and whether Cluster API has tied it to the machine or both have the
// same provider ID. The name alone proves nothing: another's Node may have it.
func nodeIsMachine(ctx context.Context, cached client.Reader, name string, machine *clusterv1.Machine, cloud *infrav1.CloudMachine) (ours, there bool, err error) {
	node := &corev1.Node{}
	if err := cached.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		if apierrors.IsNotFound(err) {
			return false, false, nil
		}
		return false, false, fmt.Errorf("reading the Node of a certificate request: %w", err)
	}
	if machine.Status.NodeRef.IsDefined() {
		return machine.Status.NodeRef.Name == name, true, nil
	}
	id := cmp.Or(machine.Spec.ProviderID, cloud.Spec.ProviderID)
	return id != "" && id == node.Spec.ProviderID, true, nil
}

func addressesOf(machine *clusterv1.Machine, cloud *infrav1.CloudMachine) []clusterv1.MachineAddress {
	return slices.Concat(machine.Status.Addresses, cloud.Status.Addresses)
}

// cloudMachine returns the machine's CloudMachine, which knows its provider ID and addresses sooner than the Machine
// does; an empty one where there is none.
func (r *CSRReconciler) cloudMachine(ctx context.Context, machine *clusterv1.Machine) (*infrav1.CloudMachine, error) {
	cloud := &infrav1.CloudMachine{}
	ref := machine.Spec.InfrastructureRef
	if ref.Kind != "CloudMachine" || ref.APIGroup != infrav1.GroupVersion.Group {
		return cloud, nil
	}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: ref.Name}, cloud)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the CloudMachine of a certificate request: %w", err)
	}
	return cloud, nil
}
