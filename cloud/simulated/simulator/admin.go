// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// Admin is a client of the admin API, for tests, the demo and the bench.
type Admin struct {
	// URL is the cloud's address, as printed. Token opens the admin API, if that has a token.
	URL, Token string
	// Client defaults to http.DefaultClient.
	Client *http.Client
}

// Snapshot returns everything that exists.
func (a Admin) Snapshot(ctx context.Context) (Snapshot, error) {
	return post[Snapshot](ctx, a, "snapshot", nothing{})
}

// Audit returns the counts since the last ResetAudit.
func (a Admin) Audit(ctx context.Context) (Audit, error) {
	return post[Audit](ctx, a, "audit", nothing{})
}

// ResetAudit sets all counts to 0.
func (a Admin) ResetAudit(ctx context.Context) error { return a.tell(ctx, "audit/reset", nothing{}) }

// Faults returns the active faults with their counts.
func (a Admin) Faults(ctx context.Context) ([]Fault, error) {
	return post[[]Fault](ctx, a, "faults", nothing{})
}

// AddFault adds a fault and returns its ID.
func (a Admin) AddFault(ctx context.Context, f Fault) (string, error) {
	r, err := post[idRequest](ctx, a, "faults/add", f)
	return r.ID, err
}

// RemoveFault removes a fault; "" removes all.
func (a Admin) RemoveFault(ctx context.Context, id string) error {
	return a.tell(ctx, "faults/remove", idRequest{id})
}

// Settings returns the settings with defaults.
func (a Admin) Settings(ctx context.Context) (Settings, error) {
	return post[Settings](ctx, a, "settings", nothing{})
}

// SetSettings replaces the settings. Zero values mean the defaults. Existing instances keep their
// lag and boot time.
func (a Admin) SetSettings(ctx context.Context, s Settings) error {
	return a.tell(ctx, "settings/set", s)
}

// SetAccount creates an account, or replaces its tokens and quota.
func (a Admin) SetAccount(ctx context.Context, o AccountOptions) error {
	return a.tell(ctx, "account/set", o)
}

// SetTokens replaces an account's tokens. Without tokens, all its credentials are revoked.
func (a Admin) SetTokens(ctx context.Context, account string, tokens ...string) error {
	return a.tell(ctx, "account/tokens", AccountOptions{Name: account, Tokens: tokens})
}

// SetQuota replaces an account's quota.
func (a Admin) SetQuota(ctx context.Context, account string, q Quota) error {
	return a.tell(ctx, "account/quota", AccountOptions{Name: account, Quota: q})
}

// SetCapacity limits a zone.
func (a Admin) SetCapacity(ctx context.Context, c CapacityChange) error {
	return a.tell(ctx, "capacity/set", c)
}

// SetDown takes the whole cloud down; "" brings it up again. Machines keep running, and the admin
// API keeps answering.
func (a Admin) SetDown(ctx context.Context, mode DownMode) error {
	return a.tell(ctx, "down", downRequest{mode})
}

// Act changes an instance outside the wire API.
func (a Admin) Act(ctx context.Context, id string, action InstanceAction) error {
	return a.tell(ctx, "instance/act", instanceActionRequest{id, action})
}

// Body returns the state of an instance's operating system, with its console.
func (a Admin) Body(ctx context.Context, id string) (body.Report, error) {
	return post[body.Report](ctx, a, "instance/body", idRequest{id})
}

// Machine returns what an instance's operating system knows of its machine, including user data.
// This is enough to give the instance another body than the simulated one. With the fault DeadBody
// the user data is not consumed.
func (a Admin) Machine(ctx context.Context, id string) (body.Machine, error) {
	return post[body.Machine](ctx, a, "instance/machine", idRequest{id})
}

// SetConsole sets the console output of an instance that has another body.
func (a Admin) SetConsole(ctx context.Context, id string, output []byte) error {
	return a.tell(ctx, "instance/console", consoleRequest{id, output})
}

// Serve gives an instance a server, at an address that the simulator can reach: load balancers
// connect to it instead of the instance's address. "" takes it away.
func (a Admin) Serve(ctx context.Context, id, address string) error {
	return a.tell(ctx, "instance/serve", serveRequest{id, address})
}

// Run creates an instance in an account, with any tags.
func (a Admin) Run(ctx context.Context, account string, run wire.RunInstancesRequest) (wire.Resource, error) {
	return post[wire.Resource](ctx, a, "instance/run", foreignRequest{account, run})
}

func (a Admin) tell(ctx context.Context, path string, in any) error {
	_, err := post[nothing](ctx, a, path, in)
	return err
}

func post[Out any](ctx context.Context, a Admin, path string, in any) (Out, error) {
	var out Out
	text, err := json.Marshal(in)
	if err != nil {
		return out, fmt.Errorf("simulator admin %s: %w", path, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(a.URL, "/")+adminPrefix+path, bytes.NewReader(text))
	if err != nil {
		return out, fmt.Errorf("simulator admin %s: %w", path, err)
	}
	if a.Token != "" {
		req.Header.Set("Authorization", "Bearer "+a.Token)
	}
	client := a.Client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return out, fmt.Errorf("simulator admin %s: %w", path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		var e wire.ErrorResponse
		if json.NewDecoder(resp.Body).Decode(&e) != nil {
			e.Code = resp.Status
		}
		return out, fmt.Errorf("simulator admin %s: %w", path, &e)
	}
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return out, fmt.Errorf("simulator admin %s: %w", path, err)
	}
	return out, nil
}
