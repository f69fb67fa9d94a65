// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// maxConsole is how much of the serial console's output is read: its end.
const maxConsole = 64 << 10

// Console implements cloud.Console. Azure keeps the output in a blob, and gives out a link to it
// that is a secret.
func (d *driver) Console(ctx context.Context, instance cloud.Resource) ([]byte, error) {
	const op = "RetrieveBootDiagnosticsData"
	var answer struct {
		Serial string `json:"serialConsoleLogBlobUri"`
	}
	if _, err := d.call(ctx, request{
		op: op, class: cloud.ClassRead, method: http.MethodPost, version: machinesVersion, out: &answer,
		path: pathOf(d.account, virtualMachines) + "/" + url.PathEscape(lastPart(instance.ID)) + "/retrieveBootDiagnosticsData",
	}); err != nil {
		return nil, err
	}
	link, err := url.Parse(answer.Serial)
	if err != nil || link.Scheme != "https" || !strings.HasSuffix(link.Hostname(), ".blob."+d.storage) {
		return nil, cloud.Errorf(cloud.Unknown, "%s: unexpected response without a link to the cloud's storage: check spec.cloud.azure", op)
	}
	return d.blob(ctx, link)
}

// blob reads the end of a blob, without the account's token.
func (d *driver) blob(ctx context.Context, link *url.URL) ([]byte, error) {
	const op = "GetBlob"
	req, err := http.NewRequestWithContext(cloud.WithOperation(ctx, op, cloud.ClassRead), http.MethodGet, link.String(), nil)
	if err != nil {
		return nil, cloud.Errorf(cloud.Unknown, "%s: the link is not a URL", op)
	}
	req.Header.Set("Range", "bytes=-65536")
	resp, err := d.api.Client.Do(req)
	if err != nil {
		return nil, d.api.Secrets.NoResponse(op, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := d.api.Secrets.ReadBody(op, resp.Body, 2*maxConsole)
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusRequestedRangeNotSatisfiable: // nothing was written yet
		return nil, nil
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent:
		return nil, cloud.Errorf(driverkit.CodeOfStatus(resp.StatusCode), "%s: unexpected response with status %d", op, resp.StatusCode)
	}
	return text, nil
}
