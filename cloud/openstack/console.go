// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/drover-io/drover/cloud"
)

// consoleLines is how many of a console's last lines the driver requests.
const consoleLines = 400

// Console implements cloud.Console with Nova's action os-getConsoleOutput. Nova answers 409 while
// the server has no console, and 501 if the hypervisor has none (Compute API, "Show Console
// Output").
func (d *driver) Console(ctx context.Context, instance cloud.Resource) ([]byte, error) {
	op := operation{"GetConsoleOutput", cloud.ClassRead, compute, http.MethodPost}
	body := map[string]any{"os-getConsoleOutput": map[string]any{"length": consoleLines}}
	var answer struct {
		Output *string `json:"output"`
	}
	err := d.call(ctx, op, "servers/"+url.PathEscape(instance.ID)+"/action", body, &answer)
	var said refusal
	switch {
	case errors.As(err, &said) && (said.status == http.StatusConflict || said.status == http.StatusNotImplemented):
		return nil, nil
	case err != nil:
		return nil, err
	case answer.Output == nil:
		return nil, unexpectedResponse(op)
	}
	return []byte(*answer.Output), nil
}
