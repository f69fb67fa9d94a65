// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/drover-io/drover/cloud"
)

const (
	// consoleLines and consoleBytes bound the part of a console log that is requested.
	consoleLines, consoleBytes = 400, 64 << 10
)

var pods = resourceKind{"api/v1", "pods", "Pod"}

// Console implements cloud.Console with the log of the container to which KubeVirt 1.1 or newer
// writes a VM's serial console. It reads the newest pod, because a VM that migrates has two.
func (d *driver) Console(ctx context.Context, vm cloud.Resource) ([]byte, error) {
	op := operation{"ListPods", cloud.ClassRead, http.MethodGet, metadataOfMany, "PartialObjectMetadataList"}
	selector := kubevirtv1.AppLabel + "=virt-launcher," + cloud.TagToken + "=" + vm.Token + "," + cloud.TagOwnership + "=" + vm.OwnershipID
	var found struct {
		Items []metav1.PartialObjectMetadata `json:"items"`
	}
	if err := d.call(ctx, op, d.path(pods, ""), url.Values{"labelSelector": {selector}}, nil, &found); err != nil || len(found.Items) == 0 {
		return nil, err
	}
	newest := slices.MaxFunc(found.Items, func(a, b metav1.PartialObjectMetadata) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	return d.podLog(ctx, newest.Name)
}

// podLog returns the end of the console log. It returns nil if the API server answers "bad
// request", because then the pod has no such log, or not yet.
func (d *driver) podLog(ctx context.Context, pod string) ([]byte, error) {
	op := operation{"GetPodLog", cloud.ClassRead, http.MethodGet, "text/plain, */*", ""}
	query := url.Values{
		"container": {string(kubevirtv1.GuestConsoleLog)}, "tailLines": {strconv.Itoa(consoleLines)}, "limitBytes": {strconv.Itoa(consoleBytes)},
	}
	text, err := d.send(cloud.WithOperation(ctx, op.name, op.class), op, d.path(pods, pod)+"/log", query, nil)
	if apierrors.IsBadRequest(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer text.Close()
	end := io.LimitReader(text, consoleBytes) // a kubelet may send more than requested
	return text.redactor.ReadBody(op.name, end, consoleBytes)
}
