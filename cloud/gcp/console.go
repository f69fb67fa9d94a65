// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// Console implements cloud.Console. A negative start counts from the end of the output.
func (d *driver) Console(ctx context.Context, instance cloud.Resource) ([]byte, error) {
	const op = "GetSerialPortOutput"
	zone, id, _ := strings.Cut(instance.ID, "/")
	var answer serialPortOutput
	err := d.call(ctx, request{
		op: op, class: cloud.ClassRead, method: http.MethodGet, path: "zones/" + zone + "/instances/" + url.PathEscape(id) + "/serialPort",
		query: url.Values{"port": {"1"}, "start": {"-65536"}}, out: &answer,
	})
	switch {
	case driverkit.RefusedAs(err, "resourceNotReady"): // nothing was written yet
		return nil, nil
	case err != nil:
		return nil, err
	case answer.Kind != "compute#serialPortOutput":
		return nil, d.api.Unexpected(op, "without output")
	}
	return []byte(answer.Contents), nil
}
