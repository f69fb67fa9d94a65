// SPDX-License-Identifier: Apache-2.0

package whole

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

// Asker asks an API server's endpoint ten times a second, each time on a new connection.
type Asker struct {
	client *http.Client
	url    string
	stop   context.CancelFunc
	asking sync.WaitGroup
	// targets says what the load balancer has as targets.
	targets func(context.Context) string

	mu      sync.Mutex
	answers Answers
}

// Answers count what became of requests.
type Answers struct {
	// Asked counts all requests, Failed those that failed, and Lost those whose retry on a new
	// connection failed, too.
	Asked, Failed, Lost int
	// Errors count the errors by their text.
	Errors map[string]int
	// First and Last are when requests were lost, and Targets what the load balancer had as targets
	// when the first was.
	First, Last time.Time
	Targets     string
}

func (a Answers) String() string {
	text := fmt.Sprintf("%d requests to the endpoint, %d failed once, %d twice: %v", a.Asked, a.Failed, a.Lost, a.Errors)
	if a.Lost > 0 {
		text += fmt.Sprintf("; lost from %s to %s; targets at first: %s", a.First.Format(time.TimeOnly), a.Last.Format(time.TimeOnly), a.Targets)
	}
	return text
}

// ask begins to ask.
func ask(ctx context.Context, config *rest.Config, targets func(context.Context) string) (*Asker, error) {
	config = rest.CopyConfig(config)
	config.Timeout = askTimeout
	config.Dial = (&net.Dialer{Timeout: askTimeout}).DialContext // not the cached transport of others
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	a := &Asker{client: &http.Client{Transport: closing{transport}, Timeout: askTimeout}, url: config.Host + "/api/v1/namespaces/default",
		stop: stop, targets: targets, answers: Answers{Errors: map[string]int{}}}
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

func (a *Asker) run(ctx context.Context) {
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
func (a *Asker) once(ctx context.Context) {
	err := a.get(ctx)
	if ctx.Err() != nil {
		return
	}
	a.mu.Lock()
	a.answers.Asked++
	a.mu.Unlock()
	if err == nil {
		return
	}
	again := a.get(ctx)
	var targets string
	if again != nil {
		targets = a.targets(ctx)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers.Failed++
	a.answers.Errors[text(err)]++
	if again != nil && ctx.Err() == nil {
		if a.answers.Lost++; a.answers.Lost == 1 {
			a.answers.First, a.answers.Targets = time.Now(), targets
		}
		a.answers.Last = time.Now()
		a.answers.Errors["again: "+text(again)]++
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

func (a *Asker) get(ctx context.Context) error {
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

// End ends the asking, and returns what was counted.
func (a *Asker) End() Answers {
	a.stop()
	a.asking.Wait()
	return a.answers
}
