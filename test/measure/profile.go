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
)

// profileLength is how much of the time while machines come is profiled.
const profileLength = 30 * time.Second

// profile begins CPU profiles. The function that it returns waits for their end and returns the files.
func (f *fleet) profile(ctx context.Context) func() []string {
	var group sync.WaitGroup
	var mu sync.Mutex
	var files []string
	for name, address := range f.profilers {
		group.Go(func() {
			file := filepath.Join(f.Dir, name+".pprof")
			url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%.0f", address, profileLength.Seconds())
			if err := download(ctx, url, file); err != nil {
				f.Say("profiling %s failed: %v", name, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			files = append(files, file)
		})
	}
	return func() []string { group.Wait(); return files }
}

func download(ctx context.Context, url, file string) (err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
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
