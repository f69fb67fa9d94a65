// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/internal/conflict"
	"github.com/drover-io/drover/internal/predicates"
	"github.com/drover-io/drover/internal/record"
)

// DroverAccountReconciler connects DroverAccounts as fleet.Accounts and reports whether they work.
type DroverAccountReconciler struct {
	Client    client.Client
	APIReader client.Reader
	Accounts  *fleet.Accounts
	// Clouds are the registry's rows.
	Clouds   []cloud.Cloud
	Recorder events.EventRecorder
	// Log gets one line when an account is connected, and for each new reason why it is not.
	Log logr.Logger
	// Changed enqueues the accounts whose inventory became fresh or stale.
	Changed *EventQueue
	// Machines enqueues all machines of a newly connected account, because they may have waited for
	// it or for other credentials.
	Machines *EventQueue
	// Endpoints does the same with clusters whose load balancer is in the account.
	Endpoints *EventQueue
	// AmbientNamespaces are the namespaces that may use the manager's own credentials.
	AmbientNamespaces []string
	WatchFilterValue  string
	// ConnectOnly restricts the reconciler to connecting accounts. Another process writes objects.
	ConnectOnly bool

	retries retries
	// lastEnqueued holds the state of each account for which its machines were last enqueued.
	lastEnqueued sync.Map // client.ObjectKey → accountSnapshot
}

// accountSnapshot is what an account's machines know of it: which one is live, and whether its
// place is proved.
type accountSnapshot struct {
	live        *fleet.Account
	placeProved bool
}

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=droveraccounts,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=droveraccounts/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=droverclusters;drovermachines,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the reconciler.
func (r *DroverAccountReconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	return builder.ControllerManagedBy(mgr).
		For(&infrav1.DroverAccount{}, builder.WithPredicates(predicates.SpecOrMetadataChanged())).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(secretToAccounts(r.Client))).
		Watches(&infrav1.DroverMachine{}, handler.EnqueueRequestsFromMapFunc(ofAccount(r.Client, accountIfDeleted)),
			builder.WithPredicates(onlyDeleted())).
		Watches(&infrav1.DroverCluster{}, handler.EnqueueRequestsFromMapFunc(ofAccount(r.Client, accountIfDeleted)),
			builder.WithPredicates(onUpdate(endpointReleased))).
		WatchesRawSource(r.Changed.Source()).
		WithOptions(options).
		Named("droveraccount").
		Complete(conflict.Retried(r))
}

// Reconcile brings one account up to date.
func (r *DroverAccountReconciler) Reconcile(ctx context.Context, req reconcile.Request) (_ reconcile.Result, reterr error) {
	account := &infrav1.DroverAccount{}
	if err := r.Client.Get(ctx, req.NamespacedName, account); err != nil {
		if apierrors.IsNotFound(err) {
			r.disconnect(req.NamespacedName)
			r.retries.forget(req.NamespacedName)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("reading the DroverAccount: %w", err)
	}
	if !predicates.Watched(account, r.WatchFilterValue) {
		return reconcile.Result{}, nil
	}
	if r.ConnectOnly {
		return r.connectOnly(ctx, account)
	}
	if !account.DeletionTimestamp.IsZero() {
		return r.reconcileDelete(ctx, account)
	}
	if controllerutil.AddFinalizer(account, infrav1.AccountFinalizer) {
		before := account.DeepCopy()
		controllerutil.RemoveFinalizer(before, infrav1.AccountFinalizer)
		patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		if err := r.Client.Patch(ctx, account, patch); err != nil {
			return reconcile.Result{}, fmt.Errorf("adding the finalizer: %w", err)
		}
		return reconcile.Result{}, nil // the write comes back as an event
	}

	before := account.DeepCopy()
	result, err := r.connect(ctx, account)
	account.Status.ObservedGeneration = account.Generation
	return result, errors.Join(err, r.write(ctx, before, account))
}

// write patches what connect has found. It writes a newly proved place first and alone. That write
// comes back as an event.
func (r *DroverAccountReconciler) write(ctx context.Context, before, account *infrav1.DroverAccount) error {
	if account.Spec.Place != before.Spec.Place {
		recorded := before.DeepCopy()
		recorded.Spec.Place = account.Spec.Place
		if err := r.Client.Patch(ctx, recorded, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("recording the place: %w", err)
		}
		return nil
	}
	setUnknown(account, infrav1.NotCheckedReason, infrav1.AccountInventoryFreshCondition, infrav1.AccountMachinesFoundCondition,
		infrav1.AccountEventStreamConnectedCondition, infrav1.AccountOrphansResolvedCondition)
	for kind, reasons := range map[string][]string{
		clusterv1.ReadyCondition: {infrav1.PlaceMismatchReason, infrav1.UnauthorizedReason, infrav1.SecretInvalidReason,
			infrav1.NotPermittedReason},
		infrav1.AccountMachinesFoundCondition: {infrav1.MassAbsenceReason},
	} {
		if reason := conditions.GetReason(account, kind); slices.Contains(reasons, reason) && conditions.GetReason(before, kind) != reason {
			r.Recorder.Eventf(account, nil, corev1.EventTypeWarning, reason, "Connect", "%s",
				cloud.Clip(conditions.GetMessage(account, kind), maxEventNote))
		}
	}
	if err := patchSharedStatus(ctx, r.Client, before, account); err != nil {
		return err
	}
	r.record(before, account)
	return nil
}

// record says that the account is connected, or why it is not. While it is deleted, it is in use.
func (r *DroverAccountReconciler) record(before, account *infrav1.DroverAccount) {
	is := conditions.GetReason(account, clusterv1.ReadyCondition)
	key := client.ObjectKeyFromObject(account).String()
	switch {
	case is == conditions.GetReason(before, clusterv1.ReadyCondition):
	case is == infrav1.ReadyReason:
		r.Log.Info("Connected the account", record.Account, key, record.CloudName, account.Status.Cloud, record.Place, account.Spec.Place)
	default:
		r.Log.Info("The account is not ready", record.Account, key, record.Reason, is, record.Message,
			conditions.GetMessage(account, clusterv1.ReadyCondition))
	}
}

// connectOnly connects the live account, if that is permitted, proves its place, and returns when
// to retry. It writes nothing: the process that writes objects reports why an account is refused.
func (r *DroverAccountReconciler) connectOnly(ctx context.Context, account *infrav1.DroverAccount) (reconcile.Result, error) {
	live, refused, err := r.setLive(ctx, account)
	if err != nil || refused != nil {
		return reconcile.Result{}, err
	}
	key := client.ObjectKeyFromObject(account)
	if _, err := live.Probe(ctx); err != nil {
		return r.retry(key, err), nil
	}
	r.retries.forget(key)
	return reconcile.Result{}, nil
}

// setLive gives the live account its current settings and credentials, or returns why it does not.
// An account that is no longer permitted is disconnected. One whose Secret is missing keeps the
// credentials that it has as long as VMs or a load balancer can be deleted only with them: a
// missing Secret withdraws no permission, as a missing label does.
func (r *DroverAccountReconciler) setLive(ctx context.Context, account *infrav1.DroverAccount) (*fleet.Account, *refusal, error) {
	key := client.ObjectKeyFromObject(account)
	config, refused, err := r.config(ctx, account)
	if err != nil {
		return nil, nil, err
	}
	if refused != nil {
		kept := refused.missing && r.Accounts.Get(key) != nil
		if kept {
			if kept, err = isNeeded(ctx, r.Client, r.APIReader, key); err != nil {
				return nil, nil, err
			}
		}
		if kept {
			refused.message += "; until then, the account keeps its previous credentials"
		} else {
			r.disconnect(key)
		}
		return nil, refused, nil
	}
	live, err := r.Accounts.Set(key, config)
	if err == nil {
		return live, nil, nil
	}
	refused = &refusal{reason: cloudReason(cloud.CodeOf(err)), message: cloudMessage(err)}
	if r.Accounts.Get(key) != nil {
		refused.message += "; the account keeps its previous settings and credentials"
	}
	return nil, refused, nil
}

// connect connects the live account, proves with one call where its credentials lead, and reports
// on its inventory. It runs when something changed, never on a timer alone: after the first call,
// the listings prove the credentials.
func (r *DroverAccountReconciler) connect(ctx context.Context, account *infrav1.DroverAccount) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(account)
	live, refused, err := r.setLive(ctx, account)
	if err != nil {
		return reconcile.Result{}, err
	}
	if refused != nil {
		setNotReady(account, refused.reason, refused.message)
		return reconcile.Result{}, nil
	}
	account.Status.Cloud = live.Cloud().Name
	known, _ := r.lastEnqueued.Load(key)
	refusedSince := cloud.CodeOf(live.Inventory().Err) == cloud.Unauthorized
	if !account.DeletionTimestamp.IsZero() && known == (accountSnapshot{live, true}) && !refusedSince {
		// Each deleted machine brings the account here: one proof is enough until the credentials
		// are refused.
		return reconcile.Result{}, r.report(ctx, account, live)
	}
	info, err := live.Probe(ctx)
	if err == nil && account.Spec.Place == "" && info.Place != "" {
		return r.pin(account, info.Place), nil
	}
	if known, _ := r.lastEnqueued.Swap(key, accountSnapshot{live, err == nil}); known != (accountSnapshot{live, err == nil}) {
		if err := r.enqueueUsers(ctx, account); err != nil {
			r.lastEnqueued.Delete(key)
			return reconcile.Result{}, err
		}
	}
	if err != nil {
		reason := cloudReason(cloud.CodeOf(err))
		if cloud.CodeOf(err) == cloud.Conflict && account.Spec.Place != "" {
			reason = infrav1.PlaceMismatchReason
		}
		setNotReady(account, reason, cloudMessage(err))
		return r.retry(key, err), nil
	}
	r.retries.forget(key)
	account.Status.FailureDomains = info.FailureDomains
	return reconcile.Result{}, r.report(ctx, account, live)
}

// report says that the account works, and what its listings show.
func (r *DroverAccountReconciler) report(ctx context.Context, account *infrav1.DroverAccount, live *fleet.Account) error {
	setReady(account)
	confirmMissing(account, live)
	state := live.Inventory()
	setInventory(account, state)
	return r.setMachinesFound(ctx, account, state)
}

// pin sets the proved place, which write then records, unless the user stated another AWS account.
// Nothing is listed, made or deleted in an account before its place is recorded.
func (r *DroverAccountReconciler) pin(account *infrav1.DroverAccount, place string) reconcile.Result {
	if err := checkAccountID(account, place); err != nil {
		setNotReady(account, infrav1.PlaceMismatchReason, err.Error())
		return r.retry(client.ObjectKeyFromObject(account), err)
	}
	account.Spec.Place = place
	return reconcile.Result{}
}

// disconnect removes the live account.
func (r *DroverAccountReconciler) disconnect(key client.ObjectKey) {
	r.Accounts.Remove(key)
	r.lastEnqueued.Delete(key)
}

// enqueueUsers enqueues every machine and every load balancer of the account.
func (r *DroverAccountReconciler) enqueueUsers(ctx context.Context, account *infrav1.DroverAccount) error {
	machines := &infrav1.DroverMachineList{}
	if err := r.Client.List(ctx, machines, client.InNamespace(account.Namespace),
		client.MatchingFields{machineByAccount: account.Name}); err != nil {
		return fmt.Errorf("listing the machines of the account: %w", err)
	}
	for i := range machines.Items {
		r.Machines.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&machines.Items[i])})
	}
	clusters := &infrav1.DroverClusterList{}
	if err := r.Client.List(ctx, clusters, client.InNamespace(account.Namespace)); err != nil {
		return fmt.Errorf("listing the clusters of the account: %w", err)
	}
	for i := range clusters.Items {
		if clusters.Items[i].Spec.Endpoint.LoadBalancer.AccountRef.Name == account.Name {
			r.Endpoints.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&clusters.Items[i])})
		}
	}
	return nil
}

// refusal is why an account may not be used.
type refusal struct {
	reason, message string
	missing         bool // the Secret does not exist
}

// config returns the configuration of the live account, or why the account may not be used.
func (r *DroverAccountReconciler) config(ctx context.Context, account *infrav1.DroverAccount) (fleet.AccountConfig, *refusal, error) {
	config := fleet.AccountConfig{Spec: account.Spec, Place: account.Spec.Place}
	config.Spec.Place = "" // otherwise recording it would rebuild the driver
	if account.Spec.CredentialsRef.Name == "" {
		return config, r.refuseAmbient(account), nil
	}
	secret := &corev1.Secret{}
	name := account.Spec.CredentialsRef.Name
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: account.Namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		return config, &refusal{missing: true, reason: infrav1.SecretInvalidReason,
			message: fmt.Sprintf("Waiting for Secret %q with the credentials to exist in this namespace", name)}, nil
	}
	if err != nil {
		return config, nil, fmt.Errorf("reading the credentials: %w", err)
	}
	if refusal := r.refuseSecret(account, secret); refusal != nil {
		return config, refusal, nil
	}
	if !r.ConnectOnly {
		// A VM is never created before this, so a later deletion always finds the credentials.
		if err := holdCredentials(ctx, r.Client, secret); err != nil {
			return config, nil, err
		}
	}
	config.Credentials = secret.Data
	if config.Credentials == nil {
		config.Credentials = map[string][]byte{} // an empty Secret must not select the ambient credentials, as nil does
	}
	return config, nil, nil
}

// refuseSecret returns why a Secret may not serve as the account's credentials, or nil. Without
// this check, a user who may write DroverAccounts could have any Secret of the namespace sent to an
// endpoint of their choice.
func (r *DroverAccountReconciler) refuseSecret(account *infrav1.DroverAccount, secret *corev1.Secret) *refusal {
	for _, row := range r.Clouds {
		if !row.Union.InAccount(&account.Spec) {
			continue
		}
		is, labeled := secret.Labels[infrav1.CredentialsLabel]
		if is == row.Name {
			return nil
		}
		overwrite := ""
		if labeled {
			overwrite = "--overwrite "
		}
		return &refusal{reason: infrav1.SecretInvalidReason, message: fmt.Sprintf("Secret %q is not labeled as credentials of this cloud: "+
			"if it holds them and may be sent to the account's endpoint, run `kubectl -n %s label %ssecret %s %s=%s`",
			secret.Name, secret.Namespace, overwrite, secret.Name, infrav1.CredentialsLabel, row.Name)}
	}
	return nil // no driver is made for a cloud that is not offered
}

// refuseAmbient returns why an account may not use the manager's own credentials, or nil.
func (r *DroverAccountReconciler) refuseAmbient(account *infrav1.DroverAccount) *refusal {
	if !slices.Contains(r.AmbientNamespaces, account.Namespace) {
		return &refusal{reason: infrav1.NotPermittedReason, message: fmt.Sprintf("Namespace %q may not use the manager's own credentials: "+
			"set spec.credentialsRef, or ask the operator to add the namespace to --ambient-credentials-namespaces", account.Namespace)}
	}
	if kubevirt := account.Spec.Cloud.KubeVirt; kubevirt != nil && kubevirt.Namespace != account.Namespace {
		return &refusal{reason: infrav1.NotPermittedReason,
			message: fmt.Sprintf("With the manager's own credentials, VMs are created only in the DroverAccount's namespace, but spec.cloud.kubevirt.namespace is %q: "+
				"set spec.credentialsRef, or create the DroverAccount in that namespace", kubevirt.Namespace)}
	}
	sim, aws, azure, gcp := account.Spec.Cloud.Simulated, account.Spec.Cloud.AWS, account.Spec.Cloud.Azure, account.Spec.Cloud.GCP
	google := gcp == nil || (gcp.Endpoint == "" && gcp.CABundle == "" && (gcp.UniverseDomain == "" || gcp.UniverseDomain == "googleapis.com"))
	if (sim != nil && sim.Endpoint != "") || (aws != nil && aws.Endpoint != "") ||
		(azure != nil && azure.Custom != (infrav1.AzureCustomCloud{})) || !google {
		return &refusal{reason: infrav1.NotPermittedReason,
			message: "The manager's own credentials are never sent to a custom endpoint: set spec.credentialsRef, or remove the endpoint"}
	}
	return nil
}

// setInventory reports the state of the listings. Refused credentials set Ready to False.
func setInventory(account *infrav1.DroverAccount, state fleet.InventoryState) {
	if cloud.CodeOf(state.Err) == cloud.Unauthorized {
		setCloudError(account, state.Err)
	}
	switch {
	case state.Fresh:
		setCondition(account, infrav1.AccountInventoryFreshCondition, metav1.ConditionTrue, infrav1.InventoryFreshReason, "")
	case state.Err != nil:
		setCondition(account, infrav1.AccountInventoryFreshCondition, metav1.ConditionFalse, cloudReason(cloud.CodeOf(state.Err)),
			"Listing the machines failed; their last known state stays: "+state.Err.Error())
	case state.LastComplete.IsZero():
		// nothing is listed yet because no machine refers to the account
		setCondition(account, infrav1.AccountInventoryFreshCondition, metav1.ConditionUnknown, infrav1.NotCheckedReason, "")
	default:
		setCondition(account, infrav1.AccountInventoryFreshCondition, metav1.ConditionFalse, infrav1.InventoryStaleReason,
			"The last complete listing of machines is too old; their last known state stays")
	}
	setEventStream(account, state)
}

// setEventStream reports whether Drover receives what the cloud announces. What an earlier process
// received counts as long as the spec stays the same, so that a restart writes nothing.
func setEventStream(account *infrav1.DroverAccount, state fleet.InventoryState) {
	kind, status, reason, message := infrav1.AccountEventStreamConnectedCondition, metav1.ConditionTrue, infrav1.EventStreamConnectedReason, ""
	known := conditions.Get(account, kind)
	switch {
	case !state.HasSource:
		reason = infrav1.NoEventStreamReason
	case state.ReceiveErr != nil:
		status, reason = metav1.ConditionFalse, cloudReason(cloud.CodeOf(state.ReceiveErr))
		message = "Events from the cloud can't be received; the machines are still listed: " + state.ReceiveErr.Error()
	case state.Received, known != nil && known.Reason == reason && known.ObservedGeneration == account.Generation:
	default:
		status, reason = metav1.ConditionUnknown, infrav1.NotCheckedReason
	}
	setCondition(account, kind, status, reason, message)
}

func (r *DroverAccountReconciler) retry(key client.ObjectKey, err error) reconcile.Result {
	if after, ok := r.retries.after(key, err); ok {
		return reconcile.Result{RequeueAfter: after}
	}
	return reconcile.Result{}
}

// reconcileDelete removes the finalizer once no machine and no load balancer needs the account for
// its own deletion.
func (r *DroverAccountReconciler) reconcileDelete(ctx context.Context, account *infrav1.DroverAccount) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(account, infrav1.AccountFinalizer) {
		return reconcile.Result{}, nil
	}
	key := client.ObjectKeyFromObject(account)
	machines, cluster, err := usersOf(ctx, r.Client, r.APIReader, key)
	if err != nil {
		return reconcile.Result{}, err
	}
	before := account.DeepCopy()
	if n := len(machines); n > 0 || cluster != "" {
		result, err := r.connect(ctx, account) // new credentials matter as much as before: the VMs are deleted with them
		if err != nil {
			return result, err
		}
		if !conditions.IsTrue(account, clusterv1.ReadyCondition) {
			return result, r.write(ctx, before, account) // Ready says what is missing
		}
		if known := conditions.Get(before, clusterv1.ReadyCondition); known != nil && known.Status == metav1.ConditionFalse {
			conditions.Set(account, *known) // since when it is not Ready
		}
		message := fmt.Sprintf("Waiting for DroverCluster %q to be deleted: its load balancer can't be deleted without this account", cluster)
		if n > 0 {
			message = fmt.Sprintf("Waiting for %d DroverMachines that refer to this account, such as %q, to be deleted: their VMs can't be deleted without it", n, machines[0].Name)
		}
		setNotReady(account, infrav1.InUseReason, message)
		return result, r.write(ctx, before, account)
	}
	r.disconnect(key)
	controllerutil.RemoveFinalizer(account, infrav1.AccountFinalizer)
	err = r.Client.Patch(ctx, account, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("removing the finalizer: %w", err)
	}
	return reconcile.Result{}, nil
}
