// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

const (
	// pageSize is the number of objects in one page of a listing. A VM has about 10 KiB.
	pageSize = 500
	// ofDrover selects every object with Drover's tags, whatever its owner.
	ofDrover = cloud.TagOwnership + "," + cloud.TagToken
)

// driver is the driver of one account.
type driver struct {
	*client
	namespace     string
	domains       []infrav1.KubeVirtFailureDomain
	place         place
	watchedBefore atomic.Bool // Watch was called before
	page          int
	sizes         driverkit.PageSizes
	// streamTimeout and absentInterval hold the constants of these names. Tests shorten them.
	streamTimeout, absentInterval time.Duration
	shapes                        driverkit.Memo[shape]
	balancers                     balancers
}

func newDriver(cfg cloud.Config) (cloud.Driver, error) {
	if cfg.Account == nil || cfg.Account.Cloud.KubeVirt == nil {
		return nil, cloud.Invalid("the account's spec.kubeVirt is not set")
	}
	to, err := endpointOf(cfg.Credentials)
	if err != nil {
		return nil, err
	}
	transport, err := cfg.Connect(to.tls)
	if err != nil {
		return nil, err
	}
	return &driver{
		client:        newClient(to, transport),
		namespace:     cfg.Account.Cloud.KubeVirt.Namespace,
		domains:       slices.Clone(cfg.Account.Cloud.KubeVirt.FailureDomains),
		page:          pageSize,
		streamTimeout: streamTimeout, absentInterval: absentInterval,
		shapes: driverkit.Memo[shape]{TTL: shapeTTL},
	}, nil
}

// resourceKind is a kind of object that a machine or a load balancer consists of.
type resourceKind struct {
	prefix, plural, kind string
}

var (
	virtualMachines  = resourceKind{"apis/kubevirt.io/v1", "virtualmachines", "VirtualMachine"}
	virtualInstances = resourceKind{"apis/kubevirt.io/v1", "virtualmachineinstances", "VirtualMachineInstance"}
	dataVolumes      = resourceKind{"apis/cdi.kubevirt.io/v1beta1", "datavolumes", "DataVolume"}
	secrets          = resourceKind{"api/v1", "secrets", "Secret"}
	services         = resourceKind{"api/v1", "services", "Service"}
	endpointSlices   = resourceKind{"apis/discovery.k8s.io/v1", "endpointslices", "EndpointSlice"}

	createSecret  = operation{"CreateSecret", cloud.ClassCreate, http.MethodPost, metadataOfOne, "PartialObjectMetadata"}
	createMachine = operation{"CreateVirtualMachine", cloud.ClassCreate, http.MethodPost, wholeObject, virtualMachines.kind}
	getMachine    = operation{"GetVirtualMachine", cloud.ClassRead, http.MethodGet, wholeObject, virtualMachines.kind}
)

func (d *driver) path(k resourceKind, name string) string {
	return path.Join(k.prefix, "namespaces", d.namespace, k.plural, name)
}

// Probe lists one VM, which needs valid credentials, the right to list VMs, and KubeVirt's API. It
// asks for the cluster's identity only if it does not know it.
func (d *driver) Probe(ctx context.Context) (cloud.Info, error) {
	op := operation{"ListVirtualMachines", cloud.ClassRead, http.MethodGet, metadataOfMany, "PartialObjectMetadataList"}
	if err := d.call(ctx, op, d.path(virtualMachines, ""), url.Values{"limit": {"1"}}, nil, nil); err != nil {
		return cloud.Info{}, err
	}
	info := cloud.Info{Place: d.place.verified()}
	if info.Place == "" {
		where, err := d.verifyPlace(ctx)
		if where == "" {
			return cloud.Info{}, err
		}
		info.Place = where // the engine compares it with the account's place
	}
	for _, domain := range d.domains {
		info.FailureDomains = append(info.FailureDomains, domain.Name)
	}
	slices.Sort(info.FailureDomains)
	return info, nil
}

// Ensure creates the Secret with the user data, and then the VM that reads it. Both are named after
// the token, so the API server refuses a duplicate.
func (d *driver) Ensure(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	domain, err := d.check(req)
	if err != nil {
		return cloud.Resource{}, err
	}
	if err := d.checkInstancetype(ctx, req.Spec.Cloud.KubeVirt); err != nil {
		if found, missing := d.adopt(ctx, req); missing == nil {
			return found, nil // it was created while its instancetype existed
		}
		return cloud.Resource{}, err
	}
	var secret metav1.PartialObjectMetadata
	err = d.call(ctx, createSecret, d.path(secrets, ""), strict(), newSecret(req, d.namespace), &secret)
	if apierrors.IsAlreadyExists(err) {
		found, err := d.adopt(ctx, req)
		if cloud.CodeOf(err) != cloud.NotFound {
			return found, err
		}
		if secret, err = d.renewSecret(ctx, req); err != nil {
			return cloud.Resource{}, err
		}
	} else if err != nil {
		return cloud.Resource{}, err
	}
	return d.createVM(ctx, req, domain, &secret)
}

// check checks the request without a call, and returns the failure domain.
func (d *driver) check(req cloud.Request) (none infrav1.KubeVirtFailureDomain, err error) {
	if _, err := union.MachineOf(req.Spec); err != nil {
		return none, err
	}
	if err := checkTags(req); err != nil {
		return none, err
	}
	if err := d.place.check(); err != nil {
		return none, err
	}
	if n := len(req.UserData); n > maxUserData {
		return none, cloud.Invalid("the user data has %d bytes, at most %d are possible", n, maxUserData)
	}
	return d.domain(req.FailureDomain)
}

// DryRun implements preflight.DryRunner. The API server checks rights and quotas, and KubeVirt's
// webhooks the machine. Whether a node has room for it, only KubeVirt's scheduling shows.
func (d *driver) DryRun(ctx context.Context, req cloud.Request) error {
	domain, err := d.check(req)
	if err == nil {
		err = d.checkInstancetype(ctx, req.Spec.Cloud.KubeVirt)
	}
	query := strict()
	query.Set("dryRun", metav1.DryRunAll)
	if err == nil {
		err = d.call(ctx, createSecret, d.path(secrets, ""), query, newSecret(req, d.namespace), nil)
	}
	if err == nil {
		err = d.call(ctx, createMachine, d.path(virtualMachines, ""), query, newVM(req, d.namespace, domain), nil)
	}
	return err
}

// isRefused reports whether no VM was created, and an immediate retry would create none.
func isRefused(err error) bool {
	switch cloud.CodeOf(err) {
	case cloud.InvalidSpec, cloud.QuotaExceeded, cloud.Unauthorized, cloud.NotFound, cloud.Conflict:
		return true
	}
	return false
}

// strict makes the API server refuse unknown fields, which an older KubeVirt would drop silently.
func strict() url.Values { return url.Values{"fieldValidation": {metav1.FieldValidationStrict}} }

// createVM creates the VM. If the API server refuses it, createVM deletes the unchanged Secret.
func (d *driver) createVM(ctx context.Context, req cloud.Request, domain infrav1.KubeVirtFailureDomain,
	secret *metav1.PartialObjectMetadata) (cloud.Resource, error) {
	var made kubevirtv1.VirtualMachine
	err := d.call(ctx, createMachine, d.path(virtualMachines, ""), strict(), newVM(req, d.namespace, domain), &made)
	if apierrors.IsAlreadyExists(err) {
		return d.adopt(ctx, req)
	}
	// Keep the Secret if an earlier create may have made a VM, because that VM would read it.
	if isRefused(err) && !req.MaybeSent {
		// A Secret that stays is deleted with the machine.
		is := &metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion}
		_ = d.removeSecrets(ctx, req.OwnershipID, []string{req.Token}, is)
	}
	if err != nil {
		return cloud.Resource{}, err
	}
	return toOwned(req, &made)
}

// adopt returns the VM that is named after the token, or NotFound if there is none.
func (d *driver) adopt(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	var found kubevirtv1.VirtualMachine
	if err := d.call(ctx, getMachine, d.path(virtualMachines, req.Token), nil, nil, &found); err != nil {
		return cloud.Resource{}, err
	}
	return toOwned(req, &found)
}

// toOwned returns the VM as a resource. It returns Conflict for a VM that only shares the name.
func toOwned(req cloud.Request, vm *kubevirtv1.VirtualMachine) (cloud.Resource, error) {
	if vm.Name != req.Token || vm.UID == "" || vm.Labels[cloud.TagToken] != req.Token || vm.Labels[cloud.TagOwnership] != req.OwnershipID {
		return cloud.Resource{}, cloud.Errorf(cloud.Conflict, "VirtualMachine %q in namespace %q does not belong to this machine", req.Token,
			vm.Namespace)
	}
	return instance(vm, nil, nil), nil
}

// renewSecret replaces the user data in a Secret that an earlier attempt left without a VM, because
// the old data may have expired for joining. It sends one patch, which the API server refuses if
// the Secret does not belong to this machine.
func (d *driver) renewSecret(ctx context.Context, req cloud.Request) (now metav1.PartialObjectMetadata, err error) {
	steps, err := patchOf(req.Token, req.OwnershipID, patchStep{"replace", "/data", secretData(req)})
	if err != nil {
		return now, err
	}
	op := operation{"PatchSecret", cloud.ClassCreate, http.MethodPatch, metadataOfOne, "PartialObjectMetadata"}
	err = d.call(ctx, op, d.path(secrets, req.Token), nil, steps, &now)
	if apierrors.IsInvalid(err) {
		return now, cloud.Errorf(cloud.Conflict, "Secret %q in namespace %q does not belong to this machine", req.Token, d.namespace)
	}
	return now, err
}

// List returns everything with Drover's tags, whatever its owner.
func (d *driver) List(ctx context.Context) ([]cloud.Resource, error) {
	found, _, err := d.readAll(ctx)
	if err != nil {
		return nil, err
	}
	return d.balancers.saw(found.resources()), nil
}

// Describe selects by token alone, because a provider ID is the token in another form. What has a
// provider ID is a machine, and no load balancer.
func (d *driver) Describe(ctx context.Context, refs []cloud.Reference) ([]cloud.Resource, error) {
	var tokens, unrecorded []string
	for _, ref := range refs {
		if ref.Token == "" || slices.Contains(tokens, ref.Token) {
			continue
		}
		if tokens = append(tokens, ref.Token); ref.ProviderID == "" {
			unrecorded = append(unrecorded, ref.Token)
		}
	}
	if len(tokens) == 0 {
		return nil, nil
	}
	recorded := driverkit.RecordedBalancers(refs)
	found, _, err := d.read(ctx, withTokens(tokens))
	if err == nil {
		err = d.checkGuests(ctx, &found)
	}
	if err == nil && len(unrecorded) > 0 {
		_, err = d.readBalancers(ctx, withTokens(unrecorded), len(recorded) > 0, &found)
	}
	if err == nil && len(found.slices) > 0 {
		found.guests, _, err = list[kubevirtv1.VirtualMachineInstance](ctx, d, virtualInstances, wholeObject, ofOwners(found.slices), pruneVMI)
	}
	if err != nil {
		return nil, err
	}
	for _, token := range unrecorded {
		_, isBalancer := recorded[token]
		if _, known := d.balancers.Get(token); known || isBalancer {
			if err := d.checkLabels(ctx, token, &found); err != nil {
				return nil, err
			}
		}
		d.balancers.Forget(token) // unless it is found
	}
	return d.balancers.saw(found.resources()), nil
}

// checkGuests leaves out the guests whose VM exists without Drover's labels: they are no machines of
// their own, and the VM must not be taken for one that is gone.
func (d *driver) checkGuests(ctx context.Context, o *objects) error {
	hasVM := func(vmi kubevirtv1.VirtualMachineInstance) bool {
		return slices.ContainsFunc(o.vms, func(vm kubevirtv1.VirtualMachine) bool { return vm.Name == vmi.Name })
	}
	var kept []kubevirtv1.VirtualMachineInstance
	for _, vmi := range o.vmis {
		if named(&vmi.ObjectMeta) && !hasVM(vmi) {
			vm, err := d.virtualMachine(ctx, vmi.Name)
			if err != nil {
				return err
			}
			if vm != nil {
				continue
			}
			vmi.OwnerReferences = nil
		}
		kept = append(kept, vmi)
	}
	o.vmis = kept
	return nil
}

// virtualMachine returns the VM of this name, whatever its labels are, or nil if there is none. An
// API server says NotFound of the VirtualMachine whether or not its namespace exists, and Forbidden
// if the role may not read it.
func (d *driver) virtualMachine(ctx context.Context, name string) (*kubevirtv1.VirtualMachine, error) {
	var vm kubevirtv1.VirtualMachine
	err := d.call(ctx, getMachine, d.path(virtualMachines, name), nil, nil, &vm)
	switch {
	case isAbsent(err, name):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &vm, nil
}

// isAbsent reports whether the API server says that there is no object of this name. Without
// details, it does not know the kind.
func isAbsent(err error, name string) bool {
	var answer apierrors.APIStatus
	return apierrors.IsNotFound(err) && errors.As(err, &answer) && answer.Status().Details != nil && answer.Status().Details.Name == name
}

// Find implements cloud.Finder.
func (d *driver) Find(ctx context.Context, ref cloud.Reference) (*cloud.Resource, error) {
	name, ok := strings.CutPrefix(ref.ProviderID, providerID(""))
	if !ok || name == "" {
		return nil, cloud.Invalid("provider ID %q is not of a VirtualMachine", cloud.Clip(ref.ProviderID, 256))
	}
	if err := d.place.check(); err != nil {
		return nil, err
	}
	vm, err := d.virtualMachine(ctx, name)
	if vm == nil {
		return nil, err
	}
	r := instance(vm, nil, nil)
	return &r, nil
}

// withTokens selects every object that has one of the tokens.
func withTokens(tokens []string) string {
	return cloud.TagToken + " in (" + strings.Join(tokens, ",") + ")," + cloud.TagOwnership
}

// objects are the API objects that machines and load balancers consist of.
type objects struct {
	vms      []kubevirtv1.VirtualMachine
	vmis     []kubevirtv1.VirtualMachineInstance
	volumes  []cdiv1.DataVolume
	secrets  []metav1.PartialObjectMetadata
	services []corev1.Service
	slices   []discoveryv1.EndpointSlice
	// guests are the instances that may be load balancers' targets.
	guests []kubevirtv1.VirtualMachineInstance
}

// versions holds the resource version of each kind's listing. volumes is "" without CDI, and
// services and slices are "" without the right to read them.
type versions struct{ vms, vmis, volumes, secrets, services, slices string }

// readAll reads everything with Drover's tags.
func (d *driver) readAll(ctx context.Context) (o objects, v versions, err error) {
	if o, v, err = d.read(ctx, ofDrover); err != nil {
		return objects{}, v, err
	}
	b, err := d.readBalancers(ctx, ofDrover, false, &o)
	if err != nil {
		return objects{}, v, err
	}
	v.services, v.slices, o.guests = b.services, b.slices, o.vmis
	return o, v, nil
}

// read lists each kind of a machine's objects in pages, in reverse order of creation. That way, an
// object that is created meanwhile is found together with the object that it was created from.
func (d *driver) read(ctx context.Context, selector string) (o objects, v versions, err error) {
	if err := d.place.check(); err != nil {
		return o, v, err
	}
	if o.vmis, v.vmis, err = list[kubevirtv1.VirtualMachineInstance](ctx, d, virtualInstances, wholeObject, selector, pruneVMI); err != nil {
		return objects{}, v, err
	}
	// A cluster without the DataVolume API has VMs with container disks only.
	if o.volumes, v.volumes, err = list[cdiv1.DataVolume](ctx, d, dataVolumes, wholeObject, selector, pruneVolume); err != nil &&
		!apierrors.IsNotFound(err) {
		return objects{}, v, err
	}
	if o.vms, v.vms, err = list[kubevirtv1.VirtualMachine](ctx, d, virtualMachines, wholeObject, selector, pruneVM); err != nil {
		return objects{}, v, err
	}
	if o.secrets, v.secrets, err = list[metav1.PartialObjectMetadata](ctx, d, secrets, metadataOfMany, selector, pruneSecret); err != nil {
		return objects{}, v, err
	}
	return o, v, nil
}

// list reads all pages. It returns what keep makes of each object, and the listing's version. A
// page that is requested after the listing has expired is an error: the listing starts over.
func list[T any](ctx context.Context, d *driver, k resourceKind, accept, selector string,
	keep func(*T) T) (all []T, version string, err error) {
	return listBy(ctx, d, k, accept, url.Values{"labelSelector": {selector}}, keep)
}

// listBy is list with any query.
func listBy[T any](ctx context.Context, d *driver, k resourceKind, accept string, query url.Values,
	keep func(*T) T) (all []T, version string, err error) {
	op := operation{"List" + k.kind + "s", cloud.ClassRead, http.MethodGet, accept, k.kind + "List"}
	if accept == metadataOfMany {
		op.kind = "PartialObjectMetadataList"
	}
	query = maps.Clone(query)
	all, err = driverkit.SizedPages(ctx, op.name, &d.sizes, 1, d.page,
		func(ctx context.Context, mark string, size int) (kept []T, next string, err error) {
			query.Set("limit", strconv.Itoa(size))
			if query.Del("continue"); mark != "" {
				query.Set("continue", mark)
			}
			var page struct {
				Metadata *metav1.ListMeta `json:"metadata"`
				Items    []T              `json:"items"`
			}
			if err := d.call(ctx, op, d.path(k, ""), query, nil, &page); err != nil {
				return nil, "", err
			}
			if page.Metadata == nil {
				return nil, "", cloud.Errorf(cloud.Unknown, "%s: unexpected response without metadata: check the kubeconfig's server", op.name)
			}
			for i := range page.Items {
				kept = append(kept, keep(&page.Items[i]))
			}
			version = page.Metadata.ResourceVersion
			return kept, page.Metadata.Continue, nil
		})
	return all, version, err
}

// Delete removes VMs, volumes and load balancers one by one, each by its name and UID, and the
// Secrets of many machines with one call. What a VM has created is deleted with it.
func (d *driver) Delete(ctx context.Context, resources []cloud.Resource) []error {
	errs := make([]error, len(resources))
	if err := d.place.check(); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	leftovers := map[string][]int{} // Secrets by owner
	for i, r := range resources {
		k, name, uid, err := object(r)
		switch {
		case err != nil:
			errs[i] = err
		case (k == virtualMachines || k == services) && r.Reason == beingDeleted:
		case k == secrets: // selected by token and owner, of which an empty one selects what has none
			if errs[i] = driverkit.CheckOwned(r); errs[i] != nil {
				continue
			}
			leftovers[r.OwnershipID] = append(leftovers[r.OwnershipID], i)
		case k == virtualInstances:
			errs[i] = d.removeGuest(ctx, name, uid)
		default:
			errs[i] = d.remove(ctx, k, name, uid)
		}
	}
	for owner, which := range leftovers {
		tokens := make([]string, len(which))
		for n, i := range which {
			tokens[n] = resources[i].Token
		}
		err := d.removeSecrets(ctx, owner, tokens, nil)
		for _, i := range which {
			errs[i] = err
		}
	}
	return errs
}

// removeGuest deletes a guest whose VM is gone. One whose VM exists would start again.
func (d *driver) removeGuest(ctx context.Context, name string, uid types.UID) error {
	vm, err := d.virtualMachine(ctx, name)
	if err == nil && vm != nil {
		err = cloud.Errorf(cloud.Conflict, "VirtualMachine %q in namespace %q lacks the labels of its VirtualMachineInstance, so Drover deletes neither", name, d.namespace)
	}
	if err != nil {
		return err
	}
	return d.remove(ctx, virtualInstances, name, uid)
}

// remove deletes one object. It returns nil if the object is gone or another one has its name.
func (d *driver) remove(ctx context.Context, k resourceKind, name string, uid types.UID) error {
	if name == "" || uid == "" { // a path without a name is that of all objects
		return cloud.Invalid("delete %s: a name and a UID are required", k.kind)
	}
	op := operation{"Delete" + k.kind, cloud.ClassDelete, http.MethodDelete, wholeObject, k.kind}
	err := d.call(ctx, op, d.path(k, name), nil, deleteOptions(&metav1.Preconditions{UID: &uid}), nil)
	// A webhook's refusal is a Conflict, too, but for another reason.
	if cloud.CodeOf(err) == cloud.NotFound || apierrors.ReasonForError(err) == metav1.StatusReasonConflict {
		return nil
	}
	return err
}

// deleteOptions returns options that delete an object if the preconditions hold; nil: always.
func deleteOptions(is *metav1.Preconditions) metav1.DeleteOptions {
	return metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, Preconditions: is}
}

// removeSecrets deletes the Secrets of many machines of one owner with one call. It deletes each
// Secret only if the preconditions hold. nil means always.
func (d *driver) removeSecrets(ctx context.Context, owner string, tokens []string, is *metav1.Preconditions) error {
	op := operation{"DeleteSecrets", cloud.ClassDelete, http.MethodDelete, metadataOfMany, "PartialObjectMetadataList"}
	selector := withTokens(tokens) + "=" + owner
	return d.call(ctx, op, d.path(secrets, ""), url.Values{"labelSelector": {selector}}, deleteOptions(is), nil)
}
