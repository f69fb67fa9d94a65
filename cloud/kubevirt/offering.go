// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// shapeTTL is how long an instancetype is cached. Instancetypes seldom change, and a VM keeps the
// shape that it was created with.
const shapeTTL = 5 * time.Minute

// shape is the CPU and memory that an instancetype gives a guest.
type shape struct {
	cpus   int64
	memory resource.Quantity
}

// defaultArchitecture is the architecture of a machine that names none.
const defaultArchitecture = infrav1.KubeVirtArchitectureAMD64

// Offering returns the capacity of the instancetype, or of the machine's own fields.
func (d *driver) Offering(ctx context.Context, fields *infrav1.DroverMachineFields) (cloud.Offering, error) {
	spec, err := union.MachineOf(fields)
	if err != nil {
		return cloud.Offering{}, err
	}
	s := shape{memory: *resource.NewQuantity(spec.MemoryMiB<<20, resource.BinarySI)}
	if c := spec.CPU; c.Cores != 0 {
		s.cpus = int64(c.Cores) * int64(max(c.Sockets, 1)) * int64(max(c.Threads, 1))
	}
	if i := spec.Instancetype; i.Name != "" {
		if s, err = d.shape(ctx, i); err != nil {
			return cloud.Offering{}, err
		}
	}
	disk := int64(0)
	if v := spec.RootDisk.DataVolume; v != nil {
		disk = int64(v.SizeGiB) << 30
	}
	o := driverkit.Offering(string(cmp.Or(spec.Architecture, defaultArchitecture)), s.cpus, 0, disk, nil)
	o.Capacity[corev1.ResourceMemory] = s.memory
	return o, nil
}

// checkInstancetype refuses a machine whose instancetype does not exist. KubeVirt accepts such a
// VM, but never starts it.
func (d *driver) checkInstancetype(ctx context.Context, spec *infrav1.KubeVirtMachine) error {
	if spec.Instancetype.Name == "" {
		return nil
	}
	_, err := d.shape(ctx, spec.Instancetype)
	return err
}

func (d *driver) shape(ctx context.Context, i infrav1.KubeVirtInstancetype) (shape, error) {
	return d.shapes.Get(ctx, string(i.Kind)+"/"+i.Name, func(ctx context.Context) (shape, error) { return d.instancetype(ctx, i) })
}

// instancetype reads an instancetype from the API server.
func (d *driver) instancetype(ctx context.Context, i infrav1.KubeVirtInstancetype) (shape, error) {
	const group = "apis/instancetype.kubevirt.io/v1beta1/"
	kind := cmp.Or(i.Kind, infrav1.KubeVirtClusterInstancetype)
	path := group + "virtualmachineclusterinstancetypes/" + url.PathEscape(i.Name)
	if kind == infrav1.KubeVirtNamespacedInstancetype {
		path = group + "namespaces/" + url.PathEscape(d.namespace) + "/virtualmachineinstancetypes/" + url.PathEscape(i.Name)
	}
	var found instancetypev1.VirtualMachineClusterInstancetype // the two kinds differ only in name
	err := d.call(ctx, operation{"GetInstancetype", cloud.ClassRead, http.MethodGet, wholeObject, string(kind)}, path, nil, nil, &found)
	if cloud.CodeOf(err) == cloud.NotFound {
		return shape{}, &cloud.Error{Code: cloud.InvalidSpec, Message: fmt.Sprintf("%s %q does not exist", kind, i.Name), Err: err}
	}
	return shape{cpus: int64(found.Spec.CPU.Guest), memory: found.Spec.Memory.Guest}, err
}
