// SPDX-License-Identifier: Apache-2.0

package body

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

const (
	// maxDepth is the maximum depth of nested scripts.
	maxDepth = 5
	// maxSteps is the maximum number of commands that are followed, of all nested scripts together.
	maxSteps = 10_000
)

// shell interprets a shell script as far as needed: whether it would start the kubelet, by
// systemctl or kubeadm, in a nested shell, or in a script or unit that the user data wrote; and
// whether it ends before that, by "exit" or "false". It assumes that all else succeeds, conditions
// are true, and an "exit" under a condition is not reached.
type shell struct {
	files func(path string) (string, bool)
	// errexit is "set -e".
	errexit bool
	depth   int
	steps   *int // commands so far, also of other scripts
}

type outcome struct {
	started, failed bool
	// join is the configuration file of "kubeadm join", which finally starts the kubelet, or "".
	join string
	// init is true if "kubeadm init" runs.
	init bool
}

// with adds the outcome of another command.
func (o outcome) with(one outcome) outcome {
	return outcome{started: o.started || one.started, failed: o.failed || one.failed, join: cmp.Or(o.join, one.join), init: o.init || one.init}
}

// follow returns the outcome of a command line of cloud-init.
func follow(line string, files func(path string) (string, bool)) outcome {
	return shell{files: files, steps: new(int)}.run(line)
}

func (s shell) run(script string) outcome {
	if s.depth > maxDepth {
		return outcome{}
	}
	var out outcome
	conditions := 0
	for _, words := range commands(script) {
		if *s.steps++; *s.steps > maxSteps {
			return out
		}
		switch words[0] {
		case "if", "case", "while", "until", "for":
			conditions++
		case "fi", "esac", "done":
			conditions = max(0, conditions-1)
		}
		words = strip(words)
		if len(words) == 0 {
			continue
		}
		switch {
		case words[0] == "set":
			s.errexit = s.errexit || slices.ContainsFunc(words[1:], setsErrexit)
		case words[0] == "exit" && conditions == 0:
			out.failed = len(words) > 1 && words[1] != "0"
			return out
		default:
			one := s.command(words)
			ends := one.failed && s.errexit && conditions == 0
			one.failed = ends
			if out = out.with(one); ends {
				return out
			}
		}
	}
	return out
}

func setsErrexit(option string) bool {
	return option == "errexit" || (strings.HasPrefix(option, "-") && !strings.HasPrefix(option, "--") && strings.Contains(option, "e"))
}

// prefixes are words before the command itself.
var prefixes = []string{"sudo", "exec", "nohup", "time", "env", "if", "then", "else", "elif", "do", "while", "until", "!", "{", "("}

func strip(words []string) []string {
	for len(words) > 0 && (slices.Contains(prefixes, words[0]) || isAssignment(words[0])) {
		words = words[1:]
	}
	return words
}

func isAssignment(word string) bool {
	name, _, ok := strings.Cut(word, "=")
	return ok && name != "" && !strings.ContainsAny(name, "/-.")
}

func (s shell) command(words []string) outcome {
	inner := shell{files: s.files, depth: s.depth + 1, steps: s.steps}
	switch path.Base(words[0]) {
	case "false":
		return outcome{failed: true}
	case "systemctl":
		return inner.systemctl(words[1:])
	case "kubeadm":
		return outcome{join: joinFile(words[1:]), init: len(words) > 1 && words[1] == "init"}
	case "sh", "bash", "dash", "ash":
		return inner.shell(words[1:])
	case "source", ".":
		words = words[1:]
	}
	if len(words) == 0 {
		return outcome{}
	}
	return inner.file(words[0])
}

func (s shell) file(name string) outcome {
	script, ok := s.files(name)
	if !ok {
		return outcome{}
	}
	return s.run(script)
}

// shell interprets the arguments of a shell: -c text, or a file.
func (s shell) shell(args []string) outcome {
	text := false
	for n := 0; n < len(args); n++ {
		arg := args[n]
		switch {
		case arg == "-o" || arg == "+o":
			n++
			s.errexit = s.errexit || (n < len(args) && args[n] == "errexit")
		case strings.HasPrefix(arg, "--"):
		case strings.HasPrefix(arg, "-"):
			text = text || strings.Contains(arg, "c")
			s.errexit = s.errexit || setsErrexit(arg)
			if strings.HasSuffix(arg, "o") {
				n++
			}
		case text:
			return s.run(arg)
		default:
			return s.file(arg)
		}
	}
	return outcome{}
}

// systemctl starts the kubelet, or what the user data's own units start.
func (s shell) systemctl(args []string) outcome {
	verb, now, names := "", false, []string(nil)
	for _, a := range args {
		switch {
		case a == "--now":
			now = true
		case strings.HasPrefix(a, "-"):
		case verb == "":
			verb = a
		default:
			names = append(names, strings.TrimSuffix(a, ".service"))
		}
	}
	switch verb {
	case "start", "restart", "reload-or-restart":
	case "enable", "reenable":
		if !now {
			return outcome{}
		}
	default:
		return outcome{}
	}
	var out outcome
	for _, name := range names {
		one := outcome{started: name == "kubelet"}
		if !one.started {
			one = s.unit(name)
		}
		out = out.with(one)
	}
	return out
}

// joinFile returns the configuration file in kubeadm's arguments for a join, or "".
func joinFile(args []string) string {
	if len(args) == 0 || args[0] != "join" {
		return ""
	}
	for n, a := range args {
		if file, ok := strings.CutPrefix(a, "--config="); ok {
			return file
		}
		if a == "--config" && n+1 < len(args) {
			return args[n+1]
		}
	}
	return ""
}

// unit runs what a unit from the user data starts.
func (s shell) unit(name string) outcome {
	text, _ := s.files("/etc/systemd/system/" + name + ".service")
	var out outcome
	for line := range strings.Lines(text) {
		exec, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart=")
		if !ok {
			continue
		}
		for _, words := range commands(exec) {
			out = out.with(s.command(words))
		}
	}
	return out
}

// commands splits a shell script into simple commands, each split into words without quotes. It
// omits commands after "||", which run only after a failure.
func commands(script string) [][]string {
	c := cutter{}
	for i := 0; i < len(script); i++ {
		i = c.step(script, i)
	}
	c.endCommand(false)
	return c.out
}

type cutter struct {
	out    [][]string
	words  []string
	word   strings.Builder
	inWord bool
	// skip is set after "||".
	skip bool
}

func (c *cutter) add(b byte) {
	c.word.WriteByte(b)
	c.inWord = true
}

func (c *cutter) endWord() {
	if c.inWord {
		c.words = append(c.words, c.word.String())
	}
	c.word.Reset()
	c.inWord = false
}

func (c *cutter) endCommand(skipNext bool) {
	c.endWord()
	if len(c.words) > 0 && !c.skip {
		c.out = append(c.out, c.words)
	}
	c.words, c.skip = nil, skipNext
}

// step consumes the character at i and those that belong to it. It returns the index of the last
// one that it consumed.
func (c *cutter) step(s string, i int) int {
	next := byte(0)
	if i+1 < len(s) {
		next = s[i+1]
	}
	switch ch := s[i]; ch {
	case '\\':
		if next != 0 && next != '\n' {
			c.add(next)
		}
		return i + 1
	case '\'', '"':
		return c.quoted(s, i, ch)
	case ' ', '\t', '\r':
		c.endWord()
	case '#':
		if c.inWord {
			c.add(ch)
			return i
		}
		if end := strings.IndexByte(s[i:], '\n'); end >= 0 {
			return i + end - 1
		}
		return len(s)
	case '|', '&':
		if next == ch {
			c.endCommand(ch == '|')
			return i + 1
		}
		c.endCommand(false)
	case ';', '\n', ')':
		c.endCommand(false)
	default:
		c.add(ch)
	}
	return i
}

// quoted consumes a quoted part of a word.
func (c *cutter) quoted(s string, i int, quote byte) int {
	c.inWord = true
	for i++; i < len(s) && s[i] != quote; i++ {
		if s[i] == '\\' && quote == '"' && i+1 < len(s) && strings.IndexByte("\"\\$`", s[i+1]) >= 0 {
			i++
		}
		c.word.WriteByte(s[i])
	}
	return i
}
