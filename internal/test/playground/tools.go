// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Tools maps the names that hack/tool uses, for example "etcd", to the paths of the programs.
type Tools map[string]string

// FindTools calls hack/tool, which builds those of the named programs that are not in its cache,
// and returns their paths. The progress goes to w (nil: nowhere).
func FindTools(ctx context.Context, w io.Writer, names ...string) (Tools, error) {
	return FindRelease(ctx, w, "", names...)
}

// FindRelease does the same for programs of a release of Kubernetes (default: the pinned one), as
// hack/tool understands it.
func FindRelease(ctx context.Context, w io.Writer, kubernetes string, names ...string) (Tools, error) {
	root, err := Root(ctx)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "hack", "tool"), names...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "DROVER_KUBERNETES="+kubernetes)
	var errs strings.Builder
	cmd.Stderr = &errs
	if w != nil {
		cmd.Stderr = io.MultiWriter(w, &errs)
		if f, ok := w.(*os.File); ok {
			cmd.Stderr = f // so that a terminal stays a terminal
		}
	}
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("build %s: %w\n%s", strings.Join(names, ", "), err, errs.String())
	}
	paths := strings.Fields(string(out))
	if len(paths) != len(names) {
		return nil, fmt.Errorf("build %s: %d paths came back", strings.Join(names, ", "), len(paths))
	}
	tools := Tools{}
	for i, name := range names {
		tools[name] = paths[i]
	}
	return tools, nil
}

// with returns the tools, with the missing ones added.
func (t Tools) with(ctx context.Context, w io.Writer, names ...string) (Tools, error) {
	var missing []string
	all := Tools{}
	for name, path := range t {
		all[name] = path
	}
	for _, name := range names {
		if all[name] == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return all, nil
	}
	found, err := FindTools(ctx, w, missing...)
	if err != nil {
		return nil, err
	}
	for name, path := range found {
		all[name] = path
	}
	return all, nil
}

// Root returns the folder of Drover's module. The working directory must be inside it, or inside
// test/, a module of its own.
func Root(ctx context.Context) (string, error) {
	root, err := goCommand(ctx, "", "list", "-m", "-f", "{{.Dir}}", "github.com/drover-io/drover")
	if err != nil {
		return "", fmt.Errorf("the working directory does not lie in Drover's modules: %w", err)
	}
	return root, nil
}

// Build builds the manager into the module's bin folder and returns its path: bin/manager, or
// bin/manager-race with the race detector. If the caller has the race detector, the binary always
// has it too, so that nothing is compiled twice. Go's build cache makes it quick when nothing
// changed.
func Build(ctx context.Context, race bool) (string, error) {
	return build(ctx, "manager", ".", race)
}

// BuildCommand builds the command drover, with the race detector if the caller has it.
func BuildCommand(ctx context.Context) (string, error) {
	return build(ctx, "drover", "./cmd/drover", false)
}

func build(ctx context.Context, name, from string, race bool) (string, error) {
	root, err := Root(ctx)
	if err != nil {
		return "", err
	}
	path, args := filepath.Join(root, "bin", name), []string{"build", "-o"}
	if race || raced {
		path += "-race"
		args = []string{"build", "-race", "-o"}
	}
	// Tests of several packages build at the same time. Without the lock, one could start a binary
	// that another is still writing.
	unlock, err := lock(filepath.Join(root, "bin"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := goCommand(ctx, root, append(args, path, from)...); err != nil {
		return "", err
	}
	return path, nil
}

// lock creates a folder and holds its lock until unlock is called or the process ends.
func lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of %s: %w", dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

// FindModule returns the source folder and version of a module that the go.mod in a folder of
// Drover requires. It downloads the module if necessary.
func FindModule(ctx context.Context, folder, path string) (dir, version string, err error) {
	root, err := Root(ctx)
	if err != nil {
		return "", "", err
	}
	out, err := goCommand(ctx, filepath.Join(root, folder), "mod", "download", "-json", path)
	if err != nil {
		return "", "", err
	}
	var module struct{ Dir, Version string }
	if err := json.Unmarshal([]byte(out), &module); err != nil {
		return "", "", fmt.Errorf("where %s lies: %w", path, err)
	}
	return module.Dir, module.Version, nil
}

// goCommand runs the go command and returns its standard output. An error quotes its standard
// error.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off") // use the versions of that go.mod, not those of a developer's workspace
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, exit.Stderr)
	}
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
