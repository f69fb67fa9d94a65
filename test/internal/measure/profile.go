// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// profileLength is the length of one profile. Profiles follow each other while machines are
// created, and pprof merges them.
const profileLength = 10 * time.Second

// profile starts CPU profiles. The returned function waits for the profiles in progress and returns
// the files.
func (f *fleet) profile(ctx context.Context) func() []string {
	enough := make(chan struct{})
	var group sync.WaitGroup
	var mu sync.Mutex
	var files []string
	for name, address := range f.profilers {
		url := fmt.Sprintf("%s/debug/pprof/profile?seconds=%.0f", address, profileLength.Seconds())
		group.Go(func() {
			for n := 0; ; n++ {
				file := filepath.Join(f.Dir, fmt.Sprintf("%s-%d.pprof", name, n))
				if err := f.download(ctx, url, file); err != nil {
					f.Say("profiling %s failed: %v", name, err)
					return
				}
				mu.Lock()
				files = append(files, file)
				mu.Unlock()
				select {
				case <-enough:
					return
				default:
				}
			}
		})
	}
	return func() []string { close(enough); group.Wait(); return files }
}

// download downloads a file as the administrator. Only the API server checks the credentials.
func (f *fleet) download(ctx context.Context, url, file string) (err error) {
	administrator, err := rest.HTTPClientFor(f.management.AdminConfig())
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := administrator.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", url, resp.Status)
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, resp.Body)
	return err
}
