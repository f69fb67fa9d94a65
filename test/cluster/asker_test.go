// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

const (
	askInterval = 100 * time.Millisecond
	askTimeout  = 5 * time.Second
)

// asker asks an API server's endpoint ten times a second, each time on a new connection.
type asker struct {
	client *http.Client
	url    string
	stop   context.CancelFunc
	asking sync.WaitGroup

	mu sync.Mutex
	// asked counts all requests, failed those that failed, and lost those whose retry failed, too.
	asked, failed, lost int
	errs                map[string]int
}

// ask begins to ask.
func ask(ctx context.Context, config *rest.Config) (*asker, error) {
	config = rest.CopyConfig(config)
	config.Timeout = askTimeout
	config.Dial = (&net.Dialer{Timeout: askTimeout}).DialContext // not the cached transport of others
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	a := &asker{client: &http.Client{Transport: closing{transport}, Timeout: askTimeout}, url: config.Host + "/api/v1/namespaces/default", stop: stop, errs: map[string]int{}}
	a.asking.Go(func() { a.run(ctx) })
	return a, nil
}

// closing closes each connection after its first request.
type closing struct{ http.RoundTripper }

func (c closing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Close = true
	return c.RoundTripper.RoundTrip(r)
}

func (a *asker) run(ctx context.Context) {
	ticker := time.NewTicker(askInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			a.asking.Go(func() { a.once(ctx) })
		}
	}
}

// once makes one request, and another if it fails.
func (a *asker) once(ctx context.Context) {
	err := a.get(ctx)
	if ctx.Err() != nil {
		return
	}
	a.mu.Lock()
	a.asked++
	a.mu.Unlock()
	if err == nil {
		return
	}
	again := a.get(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed++
	a.errs[text(err)]++
	if again != nil && ctx.Err() == nil {
		a.lost++
		a.errs["again: "+text(again)]++
	}
}

// text returns an error's text without its ports.
func text(err error) string {
	_, rest, ok := strings.Cut(err.Error(), ": ")
	if at := strings.LastIndex(rest, "->"); ok && at >= 0 {
		return rest[at:]
	}
	return err.Error()
}

func (a *asker) get(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url, nil)
	if err != nil {
		return err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status: %s", resp.Status)
	}
	return nil
}

// end ends the asking, and returns what was counted.
func (a *asker) end() (asked, failed, lost int, errs map[string]int) {
	a.stop()
	a.asking.Wait()
	return a.asked, a.failed, a.lost, a.errs
}
