// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

const (
	// pageSize is how many objects are asked for in one answer; a VM has some 10 KiB.
	pageSize = 500
	// ofDrover selects all that carries Drover's tags, whoever's.
	ofDrover = cloud.TagOwnership + "," + cloud.TagToken
)

// driver is one account's.
type driver struct {
	*client
	namespace string
	domains   []infrav1.KubeVirtFailureDomain
	place     place
	followed  atomic.Bool // has begun to follow before
	page      int
	// silence and lookForCDI are the constants, which tests shorten.
	silence, lookForCDI time.Duration
	shapes              driverkit.Memo[shape]
}

func newDriver(cfg cloud.Config) (cloud.Driver, error) {
	if cfg.Account == nil || cfg.Account.KubeVirt == nil {
		return nil, cloud.Errorf(cloud.InvalidSpec, "the account does not describe a namespace with KubeVirt")
	}
	to, err := endpointOf(cfg.Credentials)
	if err != nil {
		return nil, err
	}
	carrier, err := cfg.Connect(to.tls)
	if err != nil {
		return nil, err
	}
	return &driver{
		client:    newClient(to, carrier),
		namespace: cfg.Account.KubeVirt.Namespace,
		domains:   slices.Clone(cfg.Account.KubeVirt.FailureDomains),
		page:      pageSize,
		silence:   silence, lookForCDI: lookForCDI,
		shapes: driverkit.Memo[shape]{TTL: shapeTTL},
	}, nil
}

// resourceKind is a kind of object that a machine is made of.
type resourceKind struct {
	prefix, plural, kind string
}

var (
	virtualMachines  = resourceKind{"apis/kubevirt.io/v1", "virtualmachines", "VirtualMachine"}
	virtualInstances = resourceKind{"apis/kubevirt.io/v1", "virtualmachineinstances", "VirtualMachineInstance"}
	dataVolumes      = resourceKind{"apis/cdi.kubevirt.io/v1beta1", "datavolumes", "DataVolume"}
	secrets          = resourceKind{"api/v1", "secrets", "Secret"}
)

func (d *driver) path(k resourceKind, name string) string {
	return strings.TrimSuffix(k.prefix+"/namespaces/"+url.PathEscape(d.namespace)+"/"+k.plural+"/"+url.PathEscape(name), "/")
}

// Probe asks for one VM: that needs the credentials, the right to see VMs, and KubeVirt's API.
// Which cluster it is, is asked once.
func (d *driver) Probe(ctx context.Context) (cloud.Info, error) {
	op := operation{"ListVirtualMachines", cloud.ClassRead, http.MethodGet, metadataOfMany, "PartialObjectMetadataList"}
	if err := d.call(ctx, op, d.path(virtualMachines, ""), url.Values{"limit": {"1"}}, nil, nil); err != nil {
		return cloud.Info{}, err
	}
	info := cloud.Info{Place: d.place.known()}
	if info.Place == "" {
		where, err := d.prove(ctx)
		if where == "" {
			return cloud.Info{}, err
		}
		info.Place = where // which the engine compares with the account's
	}
	for _, domain := range d.domains {
		info.FailureDomains = append(info.FailureDomains, domain.Name)
	}
	slices.Sort(info.FailureDomains)
	return info, nil
}

// Ensure makes the Secret with the user data, and then the VM that reads it. Both are called by the
// token: the API server refuses a second one.
func (d *driver) Ensure(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	if _, err := union.MachineOf(req.Spec); err != nil {
		return cloud.Resource{}, err
	}
	if err := checkTags(req); err != nil {
		return cloud.Resource{}, err
	}
	if err := d.place.admits(); err != nil {
		return cloud.Resource{}, err
	}
	if n := len(req.UserData); n > maxUserData {
		return cloud.Resource{}, cloud.Errorf(cloud.InvalidSpec, "the user data has %d bytes, and at most %d are taken", n, maxUserData)
	}
	domain, err := d.domain(req.FailureDomain)
	if err != nil {
		return cloud.Resource{}, err
	}
	if err := d.known(ctx, req.Spec.KubeVirt); err != nil {
		if found, missing := d.adopt(ctx, req); missing == nil {
			return found, nil // it was made when its instancetype still was there
		}
		return cloud.Resource{}, err
	}
	create := operation{"CreateSecret", cloud.ClassCreate, http.MethodPost, metadataOfOne, "PartialObjectMetadata"}
	var secret metav1.PartialObjectMetadata
	err = d.call(ctx, create, d.path(secrets, ""), strictly(), newSecret(req, d.namespace), &secret)
	if alreadyExists(err) {
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

// surelyRefused tells whether no VM was made, and none will be at the next attempt in a moment.
func surelyRefused(err error) bool {
	switch cloud.CodeOf(err) {
	case cloud.InvalidSpec, cloud.QuotaExceeded, cloud.Unauthorized, cloud.NotFound, cloud.Conflict:
		return true
	}
	return false
}

// strictly has the API server refuse a field that it does not know, which an older KubeVirt would
// drop without a word.
func strictly() url.Values { return url.Values{"fieldValidation": {metav1.FieldValidationStrict}} }

// createVM makes the VM. One that is refused takes the Secret along, as this attempt has left it.
func (d *driver) createVM(ctx context.Context, req cloud.Request, domain infrav1.KubeVirtFailureDomain, secret *metav1.PartialObjectMetadata) (cloud.Resource, error) {
	create := operation{"CreateVirtualMachine", cloud.ClassCreate, http.MethodPost, wholeObject, virtualMachines.kind}
	var made kubevirtv1.VirtualMachine
	err := d.call(ctx, create, d.path(virtualMachines, ""), strictly(), newVM(req, d.namespace, domain), &made)
	if alreadyExists(err) {
		return d.adopt(ctx, req)
	}
	// An earlier VM, of which nobody knows yet, would read it.
	if surelyRefused(err) && !req.MaybeSent {
		// One that stays goes with the machine.
		is := &metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion}
		_ = d.removeSecrets(ctx, req.OwnershipID, []string{req.Token}, is)
	}
	if err != nil {
		return cloud.Resource{}, err
	}
	return ours(req, &made)
}

// adopt reads the VM that has the token's name. None is NotFound.
func (d *driver) adopt(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	get := operation{"GetVirtualMachine", cloud.ClassRead, http.MethodGet, wholeObject, virtualMachines.kind}
	var found kubevirtv1.VirtualMachine
	if err := d.call(ctx, get, d.path(virtualMachines, req.Token), nil, nil, &found); err != nil {
		return cloud.Resource{}, err
	}
	return ours(req, &found)
}

// ours refuses a VM that only has the name.
func ours(req cloud.Request, vm *kubevirtv1.VirtualMachine) (cloud.Resource, error) {
	if vm.Name != req.Token || vm.UID == "" || vm.Labels[cloud.TagToken] != req.Token || vm.Labels[cloud.TagOwnership] != req.OwnershipID {
		return cloud.Resource{}, cloud.Errorf(cloud.Conflict, "a VirtualMachine %q exists in namespace %q, and is not this machine's", req.Token, vm.Namespace)
	}
	return instance(vm, nil, nil), nil
}

// renewSecret puts the user data into a Secret that an earlier attempt left without a VM: what it
// holds may be too old to join by. One patch, which the API server refuses where the Secret is not
// this machine's.
func (d *driver) renewSecret(ctx context.Context, req cloud.Request) (now metav1.PartialObjectMetadata, err error) {
	type step struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	steps, err := json.Marshal([]step{
		{"test", "/metadata/labels/" + cloud.TagToken, req.Token},
		{"test", "/metadata/labels/" + cloud.TagOwnership, req.OwnershipID},
		{"replace", "/data", secretData(req)},
	})
	if err != nil {
		return now, &cloud.Error{Code: cloud.InvalidSpec, Message: "the user data can't be written as JSON", Err: err}
	}
	op := operation{"PatchSecret", cloud.ClassCreate, http.MethodPatch, metadataOfOne, "PartialObjectMetadata"}
	err = d.call(ctx, op, d.path(secrets, req.Token), nil, patch(steps), &now)
	var answer statusError
	if errors.As(err, &answer) && answer.http == http.StatusUnprocessableEntity {
		return now, cloud.Errorf(cloud.Conflict, "a Secret %q exists in namespace %q, and is not this machine's", req.Token, d.namespace)
	}
	return now, err
}

func alreadyExists(err error) bool {
	var answer statusError
	return errors.As(err, &answer) && answer.reason == metav1.StatusReasonAlreadyExists
}

// List reads all that carries Drover's tags, whoever's.
func (d *driver) List(ctx context.Context) ([]cloud.Resource, error) {
	return d.find(ctx, ofDrover)
}

// Describe asks by token alone: a provider ID is the token in another form.
func (d *driver) Describe(ctx context.Context, refs []cloud.Reference) ([]cloud.Resource, error) {
	var tokens []string
	for _, ref := range refs {
		if ref.Token != "" && !slices.Contains(tokens, ref.Token) {
			tokens = append(tokens, ref.Token)
		}
	}
	if len(tokens) == 0 {
		return nil, nil
	}
	return d.find(ctx, cloud.TagToken+" in ("+strings.Join(tokens, ",")+"),"+cloud.TagOwnership)
}

// find reads all that the selector chooses, and puts together what belongs together.
func (d *driver) find(ctx context.Context, selector string) ([]cloud.Resource, error) {
	found, _, err := d.read(ctx, selector)
	if err != nil {
		return nil, err
	}
	return found.resources(), nil
}

// objects are what machines are made of.
type objects struct {
	vms     []kubevirtv1.VirtualMachine
	vmis    []kubevirtv1.VirtualMachineInstance
	volumes []cdiv1.DataVolume
	secrets []metav1.PartialObjectMetadata
}

// versions are as of when each kind was read. That of volumes is "" where there is no CDI.
type versions struct{ vms, vmis, volumes, secrets string }

// read lists each kind in pages. The order is that of their making backwards: what is made
// meanwhile is found with what it is made from.
func (d *driver) read(ctx context.Context, selector string) (o objects, v versions, err error) {
	if err := d.place.admits(); err != nil {
		return o, v, err
	}
	if o.vmis, v.vmis, err = list[kubevirtv1.VirtualMachineInstance](ctx, d, virtualInstances, wholeObject, selector, keepVMI); err != nil {
		return objects{}, v, err
	}
	if o.volumes, v.volumes, err = list[cdiv1.DataVolume](ctx, d, dataVolumes, wholeObject, selector, keepVolume); err != nil && !withoutCDI(err) {
		return objects{}, v, err
	}
	if o.vms, v.vms, err = list[kubevirtv1.VirtualMachine](ctx, d, virtualMachines, wholeObject, selector, keepVM); err != nil {
		return objects{}, v, err
	}
	if o.secrets, v.secrets, err = list[metav1.PartialObjectMetadata](ctx, d, secrets, metadataOfMany, selector, keepSecret); err != nil {
		return objects{}, v, err
	}
	return o, v, nil
}

// withoutCDI tells whether the cluster has no DataVolumes at all. Such a cluster's VMs are on
// container disks.
func withoutCDI(err error) bool {
	var answer statusError
	return errors.As(err, &answer) && answer.http == http.StatusNotFound
}

// list reads all pages, of which it keeps what is needed, and as of which version they are. A page
// that comes too late, for the first is too old by then, is an error: the listing begins anew.
func list[T any](ctx context.Context, d *driver, k resourceKind, accept, selector string, keep func(*T) T) (all []T, version string, err error) {
	op := operation{"List" + k.kind + "s", cloud.ClassRead, http.MethodGet, accept, k.kind + "List"}
	if accept == metadataOfMany {
		op.kind = "PartialObjectMetadataList"
	}
	query := url.Values{"labelSelector": {selector}, "limit": {strconv.Itoa(d.page)}}
	all, err = driverkit.Pages(ctx, op.name, func(ctx context.Context, mark string) (kept []T, next string, err error) {
		if mark != "" {
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
			return nil, "", cloud.Errorf(cloud.Unknown, "%s: the answer has no metadata: does the endpoint belong to a Kubernetes API server?", op.name)
		}
		for i := range page.Items {
			kept = append(kept, keep(&page.Items[i]))
		}
		version = page.Metadata.ResourceVersion
		return kept, page.Metadata.Continue, nil
	})
	return all, version, err
}

// Delete removes VMs and volumes one by one, each by its name and UID, and the Secrets of many
// machines by one call. What a VM has made of itself goes with it.
func (d *driver) Delete(ctx context.Context, resources []cloud.Resource) []error {
	errs := make([]error, len(resources))
	if err := d.place.admits(); err != nil {
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
		case k == virtualMachines && r.Reason == beingDeleted:
		case k == secrets:
			leftovers[r.OwnershipID] = append(leftovers[r.OwnershipID], i)
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

// remove deletes one object, unless another one has its name by now.
func (d *driver) remove(ctx context.Context, k resourceKind, name string, uid types.UID) error {
	op := operation{"Delete" + k.kind, cloud.ClassDelete, http.MethodDelete, wholeObject, k.kind}
	err := d.call(ctx, op, d.path(k, name), nil, only(&metav1.Preconditions{UID: &uid}), nil)
	switch cloud.CodeOf(err) {
	case cloud.NotFound, cloud.Conflict: // it is gone already, and what has its name is another
		return nil
	}
	return err
}

// only is a deletion of what an object still is; of whatever it is where that is nil.
func only(is *metav1.Preconditions) metav1.DeleteOptions {
	return metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, Preconditions: is}
}

// removeSecrets deletes those of many machines of one owner by one call, as long as each is what it
// is known as.
func (d *driver) removeSecrets(ctx context.Context, owner string, tokens []string, is *metav1.Preconditions) error {
	op := operation{"DeleteSecrets", cloud.ClassDelete, http.MethodDelete, metadataOfMany, "PartialObjectMetadataList"}
	selector := cloud.TagToken + " in (" + strings.Join(tokens, ",") + ")," + cloud.TagOwnership + "=" + owner
	return d.call(ctx, op, d.path(secrets, ""), url.Values{"labelSelector": {selector}}, only(is), nil)
}
