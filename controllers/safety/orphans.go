// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/internal/conflict"
	"github.com/drover-io/drover/internal/predicates"
	"github.com/drover-io/drover/internal/record"
)

const (
	// leastDoubt is the minimum number of machines with orphans for MaxShare to apply.
	leastDoubt = 3
	// deletionRecheck is the longest time between two checks of a deletion in progress.
	deletionRecheck = time.Minute
	// deletionRetry is how long to wait before the deletion of a resource is requested again.
	deletionRetry = time.Minute
	// listingRecheck is when to check again for a listing that has not arrived.
	listingRecheck = 10 * time.Second
	// maxObserved is how many orphans the status lists, and maxID the maximum length of an ID in
	// bytes. A tenant's endpoint may send any ID, and a status that the API server rejects would
	// show nothing at all.
	maxObserved = 20
	maxID       = 512
	// maxTokens is how many tokens an Event names. An Event's note holds 1,024 bytes.
	maxTokens = 10
	// emptyListing says why a listing that arrived is not judged.
	emptyListing = "the cloud's listing contains no resource of any cluster here, although DroverMachines have recorded their VMs: check that the credentials still permit listing"
)

// OrphanReconciler finds, for each account, resources that carry the ownership ID of a cluster here
// and belong to none of its machines. It deletes them if the account's policy says so.
//
// Apart from the shared listings, it costs the cloud one live read before each deletion. It judges
// every step of a deletion again, by a newer listing and by the current state of the API server. No
// deletion continues on its own.
type OrphanReconciler struct {
	// Client writes. It also reads, from the cache, the objects that only determine when to make a
	// pass. APIReader reads the facts that a verdict is based on.
	Client    client.Client
	APIReader client.Reader
	Accounts  *fleet.Accounts
	Recorder  events.EventRecorder
	// Log gets one line for each deletion that is requested, and for its end.
	Log logr.Logger
	// Identity is the prefix of every creation token of this management cluster.
	Identity string
	// Namespace is the only namespace whose accounts are checked. If empty, all are. If the manager
	// may not read the other namespaces, it deletes nothing, because a DroverCluster there may have
	// the same ownership ID.
	Namespace string

	// Period is the time between two passes. Grace is the time between the first and the last
	// listing that confirm an orphan. It must be longer than the longest create call.
	Period, Grace time.Duration
	// MaxDeletions is the number of machines whose remains one pass may begin to delete. MaxShare
	// is a percentage of an account's fleet. If more machines than that have orphans, a person must
	// confirm them.
	MaxDeletions, MaxShare int
	Metrics                *Metrics
	WatchFilterValue       string

	memories sync.Map // client.ObjectKey → *memory
	owners   shared[clusterList]
	tenants  sync.Map        // namespace → *shared[tenant]
	claims   shared[[]claim] // of all namespaces
}

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=droveraccounts;droverclusters;drovermachines,verbs=get;list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=droveraccounts/status,verbs=patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the reconciler.
func (r *OrphanReconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	if r.Period <= 0 || r.Grace <= 0 || r.MaxDeletions <= 0 || r.MaxShare <= 0 || r.Identity == "" {
		return fmt.Errorf("the orphan collector needs a period, a grace, limits and an identity: %s, %s, %d, %d, %q",
			r.Period, r.Grace, r.MaxDeletions, r.MaxShare, r.Identity)
	}
	// The queue serves accounts in turn. With priorities, the accounts that a starting manager
	// finds would wait for all accounts with a newer event. If there are more of those than the
	// manager can handle, they would wait forever.
	options.UsePriorityQueue = ptr.To(false)
	return builder.ControllerManagedBy(mgr).
		For(&infrav1.DroverAccount{}).
		WithOptions(options).
		Named("orphans").
		Complete(conflict.Retried(r))
}

// Reconcile makes a pass over one account if a pass is due and a new listing is available.
func (r *OrphanReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	account := &infrav1.DroverAccount{}
	if err := r.Client.Get(ctx, req.NamespacedName, account); err != nil {
		if apierrors.IsNotFound(err) {
			r.memories.Delete(req.NamespacedName)
			r.tenants.Delete(req.Namespace) // other accounts of the namespace create it again
			r.Metrics.forget(req.String())
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("reading the DroverAccount: %w", err)
	}
	switch {
	case !account.DeletionTimestamp.IsZero() || annotations.HasPaused(account):
		return reconcile.Result{}, nil
	case !predicates.Watched(account, r.WatchFilterValue):
		return reconcile.Result{}, nil
	}
	live := r.Accounts.Get(req.NamespacedName)
	if live == nil {
		return reconcile.Result{RequeueAfter: min(r.Period, listingRecheck)}, nil
	}
	m := r.memory(account)
	if left := m.every(r.Period) - time.Since(m.passed); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	listed, resources := live.Listing(m.every(r.Period))
	if !listed.After(m.listed) {
		return reconcile.Result{RequeueAfter: min(r.Period, listingRecheck)}, nil // the listing is in progress, or fails
	}
	return r.pass(ctx, account, live, m, listed, resources)
}

// memory returns the account's memory. A new one starts with the count of an earlier process.
func (r *OrphanReconciler) memory(account *infrav1.DroverAccount) *memory {
	fresh := &memory{begun: map[string]map[string]time.Time{}}
	if o := account.Status.Orphans; o != nil {
		fresh.machines = int(ptr.Deref(o.Machines, 0))
	}
	known, _ := r.memories.LoadOrStore(client.ObjectKeyFromObject(account), fresh)
	return known.(*memory) // one reconcile of an account at a time
}

// every returns the time between two passes. It is shorter while deletions are in progress.
func (m *memory) every(period time.Duration) time.Duration {
	if len(m.begun) > 0 || m.unread {
		return min(period, deletionRecheck)
	}
	return period
}

// pass judges one listing, acts on it, and reports the result.
func (r *OrphanReconciler) pass(
	ctx context.Context, account *infrav1.DroverAccount, live *fleet.Account, m *memory, listed time.Time, resources []cloud.Resource,
) (reconcile.Result, error) {
	f, err := r.facts(ctx, account, listed, resources)
	if err != nil {
		return reconcile.Result{}, err // never judge by incomplete facts
	}
	found, ok := m.judge(f, r.Grace)
	m.passed = time.Now()
	if !ok {
		ctrl.LoggerFrom(ctx).Info("The listing is ignored", "reason", emptyListing)
		return reconcile.Result{RequeueAfter: m.every(r.Period)}, nil
	}
	before := account.DeepCopy()
	key := client.ObjectKeyFromObject(account).String()
	r.recordDeleted(key, found)
	if n := len(found.deleted); n > 0 { // one Event for all: the API merges further Events of the same kind
		r.Metrics.deleted.WithLabelValues(key).Add(float64(n))
		r.Recorder.Eventf(account, nil, corev1.EventTypeNormal, "OrphanDeleted", "CollectOrphans",
			"Deleted the remaining resources of %d machines, which belonged to no DroverMachine. Their tokens: %s", n,
			strings.Join(found.deleted[:min(n, maxTokens)], ", "))
	}
	due, blocked := r.decide(account, m, found)
	if err := r.remove(ctx, account, live, m, due); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Deleting an orphan failed and will be retried")
	}
	r.updateStatus(account, m, found, due)
	r.emitEvent(before, account)
	account.Status.FormerOwners = slices.DeleteFunc(account.Status.FormerOwners, func(o infrav1.FormerOwner) bool {
		return slices.Contains(found.forgotten, o.OwnershipID)
	})
	r.Metrics.found(key, found, blocked)
	if err := r.patch(ctx, before, account); err != nil {
		m.passed = time.Time{} // the result must be reported: the next listing starts another pass
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: m.every(r.Period)}, nil
}

// decide sets the condition to the result and the next step. It returns the orphans that policy and
// limits allow to be deleted now, by token. blocked means that a person must decide.
func (r *OrphanReconciler) decide(account *infrav1.DroverAccount, m *memory, found report) (due map[string][]orphan, blocked bool) {
	doubt := m.doubt(found, limits{share: r.MaxShare, least: leastDoubt})
	confirmation := account.Annotations[infrav1.ConfirmOrphansAnnotation]
	counts := fmt.Sprintf("%d resources of %d machines, of %d in the cloud, belong to no DroverMachine", len(found.orphans), found.tokens,
		found.fleet)
	switch {
	case len(found.duplicates) > 0:
		setCondition(account, infrav1.OrphansConfirmationRequiredReason, fmt.Sprintf(
			"The DroverMachine with token %s has several VMs and has recorded none of them, so nothing is deleted: delete all but one of them in the cloud", found.duplicates[0]))
		return nil, true
	case len(found.orphans) == 0 && len(found.otherManager) == 0:
		setCondition(account, infrav1.NoOrphansReason, "")
	case len(found.orphans) == 0:
		setCondition(account, infrav1.OrphansReportOnlyReason, fmt.Sprintf("%d resources of clusters here were made by another "+
			"management cluster and belong to no DroverMachine here: check there whether they are in use, or delete them in the cloud",
			len(found.otherManager)))
	case found.confined:
		setCondition(account, infrav1.OrphansReportOnlyReason,
			fmt.Sprintf("%s; they are only reported, because this manager may read only namespace %q, "+
				"and a DroverCluster or DroverMachine elsewhere may own them", counts, r.Namespace))
	case doubt != "" && !m.allow(found, confirmation):
		m.doubted = true
		setCondition(account, infrav1.OrphansConfirmationRequiredReason, fmt.Sprintf(
			"%s: %s, so none is deleted; check them in status.orphans, and to permit their deletion, annotate this account with %s=%s",
			counts, doubt, infrav1.ConfirmOrphansAnnotation, found.digest()))
		return nil, true
	case account.Spec.OrphanPolicy != infrav1.OrphanPolicyDelete:
		setCondition(account, infrav1.OrphansReportOnlyReason, counts+"; they are only reported, because spec.orphanPolicy is not Delete")
	default:
		setCondition(account, infrav1.OrphansDeletingReason, fmt.Sprintf("%s; each is deleted after %s without a machine", counts, r.Grace))
		due = m.due(found, r.MaxDeletions, r.Grace)
	}
	return due, false
}

// remove advances the deletion of the remains of machines by one step, after a live read. It
// deletes instances first, and what belongs to them once none of them lives.
func (r *OrphanReconciler) remove(ctx context.Context, account *infrav1.DroverAccount, live *fleet.Account, m *memory,
	due map[string][]orphan) error {
	var refs []cloud.Reference
	for token, orphans := range due {
		if slices.ContainsFunc(orphans, func(o orphan) bool { return m.mayRequest(o.Resource) }) {
			refs = append(refs, cloud.Reference{Token: token, OwnershipID: orphans[0].OwnershipID})
		}
	}
	if m.unread = false; len(refs) == 0 {
		return nil
	}
	found, failed := live.Read(ctx, refs)
	m.unread = len(failed) > 0
	var targets []cloud.Resource
	for _, ref := range refs {
		if failed[ref.Token] == nil { // a failed read shows neither absence nor presence
			targets = append(targets, slices.DeleteFunc(step(due[ref.Token], found[ref.Token]),
				func(x cloud.Resource) bool { return !m.mayRequest(x) })...)
		}
	}
	slices.SortFunc(targets, func(a, b cloud.Resource) int { return strings.Compare(name(a), name(b)) })
	r.recordDeletion(client.ObjectKeyFromObject(account).String(), m, targets)
	var refused error
	for i, err := range live.Remove(ctx, targets) {
		m.recordRequest(targets[i])
		if err != nil {
			refused = err
		}
	}
	return refused
}

// recordDeletion says once of each resource that its deletion is requested.
func (r *OrphanReconciler) recordDeletion(account string, m *memory, targets []cloud.Resource) {
	for _, x := range targets {
		if _, said := m.begun[x.Token][name(x)]; !said {
			r.Log.Info("Deleting the orphan", record.Account, account, record.Resource, name(x), record.ProviderID, x.ProviderID, record.Token,
				x.Token,
				record.Owner, x.OwnershipID, record.By, record.Orphan)
		}
	}
}

// recordDeleted says of each deleted resource that the cloud no longer lists it.
func (r *OrphanReconciler) recordDeleted(account string, found report) {
	for _, token := range found.deleted {
		for _, resource := range found.remains[token] {
			r.Log.Info("The orphan is deleted", record.Account, account, record.Resource, resource, record.Token, token, record.By, record.Orphan)
		}
	}
}

// mayRequest reports whether no deletion was requested yet, or the last request was deletionRetry
// ago.
func (m *memory) mayRequest(x cloud.Resource) bool {
	at, asked := m.begun[x.Token][name(x)]
	return !asked || time.Since(at) >= deletionRetry
}

// recordRequest records that the deletion of the resource was requested.
func (m *memory) recordRequest(x cloud.Resource) {
	if m.begun[x.Token] == nil {
		m.begun[x.Token] = map[string]time.Time{}
	}
	m.begun[x.Token][name(x)] = time.Now()
}

// step returns the existing orphans to delete next.
func step(orphans []orphan, read []cloud.Resource) (targets []cloud.Resource) {
	var rest []cloud.Resource
	for _, x := range read {
		same := func(o orphan) bool { return name(o.Resource) == name(x) && o.OwnershipID == x.OwnershipID }
		switch {
		case !slices.ContainsFunc(orphans, same):
		case alive(x):
			targets = append(targets, x)
		case x.Kind != cloud.KindInstance:
			rest = append(rest, x)
		}
	}
	if len(targets) == 0 {
		return rest
	}
	return targets
}

// updateStatus writes the result to the status. due are the machines whose remains may be deleted,
// by token. The next process uses the number of machines.
func (r *OrphanReconciler) updateStatus(account *infrav1.DroverAccount, m *memory, found report, due map[string][]orphan) {
	status := &infrav1.OrphansStatus{Machines: ptr.To(int32(m.machines))}
	if found.unknownOwner > 0 {
		status.UnknownOwner = ptr.To(int32(found.unknownOwner))
	}
	if len(found.otherManager) > 0 {
		status.OtherManager = ptr.To(int32(len(found.otherManager)))
	}
	if len(found.orphans) > 0 {
		status.Found, status.Confirmed = ptr.To(int32(len(found.orphans))), ptr.To(int32(found.confirmed()))
		status.Digest = found.digest()
	}
	for _, o := range found.orphans {
		one := infrav1.Orphan{Kind: string(o.Kind), ID: shorten(o.ID), Since: metav1.NewTime(o.since)}
		switch {
		case due[o.Token] != nil && m.begun[o.Token] != nil:
			one.State = infrav1.OrphanDeleting
		case o.confirmed:
			one.State = infrav1.OrphanConfirmed
		default:
			one.State, one.DueTime = infrav1.OrphanObserved, metav1.NewTime(o.since.Add(r.Grace))
		}
		status.Observed = append(status.Observed, one)
	}
	for _, o := range found.otherManager {
		status.Observed = append(status.Observed, infrav1.Orphan{
			Kind: string(o.Kind), ID: shorten(o.ID), Since: metav1.NewTime(o.since), State: infrav1.OrphanOtherManager,
		})
	}
	status.Observed = status.Observed[:min(len(status.Observed), maxObserved)]
	account.Status.Orphans = status
}

func (r report) confirmed() (n int) {
	for _, o := range r.orphans {
		if o.confirmed {
			n++
		}
	}
	return n
}

// shorten returns the ID in a form that the status can hold.
func shorten(id string) string {
	id = strings.ToValidUTF8(id, "?")
	return cmp.Or(strings.ToValidUTF8(id[:min(len(id), maxID)], ""), "?")
}

// setCondition sets the condition.
func setCondition(account *infrav1.DroverAccount, reason, message string) {
	status := metav1.ConditionFalse
	if reason == infrav1.NoOrphansReason {
		status = metav1.ConditionTrue
	}
	conditions.Set(account, metav1.Condition{
		Type: infrav1.AccountOrphansResolvedCondition, Status: status, Reason: reason, Message: message, ObservedGeneration: account.Generation,
	})
}

// emitEvent emits an Event if the condition is False for a new reason.
func (r *OrphanReconciler) emitEvent(before, account *infrav1.DroverAccount) {
	was, is := conditions.GetReason(before, infrav1.AccountOrphansResolvedCondition),
		conditions.Get(account, infrav1.AccountOrphansResolvedCondition)
	if is.Status == metav1.ConditionFalse && is.Reason != was {
		r.Recorder.Eventf(account, nil, corev1.EventTypeWarning, "Orphans"+is.Reason, "CollectOrphans", "%s", is.Message)
	}
}

// DryRun sets the account's status as a pass would now. It uses the status of an earlier pass as
// its memory. It writes nothing to the API server and deletes nothing. The account must be
// connected. ctx limits the wait for a complete listing.
func (r *OrphanReconciler) DryRun(ctx context.Context, account *infrav1.DroverAccount) error {
	live := r.Accounts.Get(client.ObjectKeyFromObject(account))
	if live == nil {
		return errors.New("the account is not connected")
	}
	var listed time.Time
	var resources []cloud.Resource
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) {
		listed, resources = live.Listing(time.Hour)
		return !listed.IsZero(), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for a complete listing: %w", errors.Join(err, live.Inventory().Err))
	}
	f, err := r.facts(ctx, account, listed, resources)
	if err != nil {
		return err
	}
	m := &memory{since: map[string]time.Time{}}
	if o := account.Status.Orphans; o != nil {
		m.machines = int(ptr.Deref(o.Machines, 0))
		for _, x := range o.Observed {
			m.since[x.Kind+"/"+x.ID] = x.Since.Time
		}
	}
	found, ok := m.judge(f, r.Grace)
	if !ok {
		return errors.New(emptyListing)
	}
	due, _ := r.decide(account, m, found)
	m.begun = map[string]map[string]time.Time{}
	for _, orphans := range due {
		for _, x := range step(orphans, resources) {
			m.recordRequest(x)
		}
	}
	r.updateStatus(account, m, found, due)
	return nil
}

// patch writes the status with an optimistic lock, because other reconcilers write it too.
func (r *OrphanReconciler) patch(ctx context.Context, before, account *infrav1.DroverAccount) error {
	if equality.Semantic.DeepEqual(before, account) {
		return nil
	}
	err := r.Client.Status().Patch(ctx, account, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the result to the status: %w", err)
	}
	return nil
}
