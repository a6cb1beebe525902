// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// unitFolders returns the folders that contain units. If several folders contain the same unit, the first one takes
// precedence.
func unitFolders() []string {
	return []string{"etc/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system"}
}

// unit contains the settings from a service's files that serviceManager supports. All other settings are ignored.
type unit struct {
	// command is the value of ExecStart, with variables not yet expanded.
	command string
	// environment contains variables, and files are files that contain more variables. A file whose name starts with
	// "-" may be missing.
	environment, files []string
	// restarts is true if the service is restarted after a failure. always is true if it is also restarted after
	// ending without a failure.
	restarts, always bool
	pause            time.Duration
	// condition is a file that must exist for the service to be started, or "" if there is none.
	condition string
}

// readUnit reads the unit with the given name and its drop-ins from a host's root.
func readUnit(root, name string) (unit, error) {
	for _, folder := range unitFolders() {
		path := filepath.Join(root, folder, name)
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return unit{}, err
		}
		u := unit{pause: 100 * time.Millisecond}
		if err := u.read(string(content)); err != nil {
			return unit{}, fmt.Errorf("read unit %s: %w", name, err)
		}
		dropIns, err := filepath.Glob(filepath.Join(path+".d", "*.conf"))
		if err != nil {
			return unit{}, err
		}
		for _, path := range dropIns {
			content, err := os.ReadFile(path)
			if err != nil {
				return unit{}, err
			}
			if err := u.read(string(content)); err != nil {
				return unit{}, fmt.Errorf("read unit %s: %s: %w", name, filepath.Base(path), err)
			}
		}
		return u, nil
	}
	return unit{}, fmt.Errorf("unit %s could not be found", name) // kubeadm recognizes this message from systemctl
}

// read adds the settings from one file. An empty value resets a setting.
func (u *unit) read(text string) error {
	for line := range strings.Lines(text) {
		key, value, found := strings.Cut(strings.TrimSpace(line), "=")
		if !found || strings.HasPrefix(key, "#") {
			continue
		}
		value = strings.TrimSpace(value)
		switch key {
		case "ExecStart":
			u.command = value
		case "Environment":
			u.environment = added(u.environment, value)
		case "EnvironmentFile":
			u.files = added(u.files, value)
		case "Restart":
			u.restarts, u.always = value != "no", value == "always"
		case "RestartSec":
			pause, err := time.ParseDuration(value)
			if err != nil {
				pause, err = time.ParseDuration(value + "s")
			}
			if err != nil {
				return fmt.Errorf("RestartSec: %q is not a duration", value)
			}
			u.pause = pause
		case "ConditionPathExists":
			u.condition = value
		}
	}
	return nil
}

func added(list []string, value string) []string {
	if value == "" {
		return nil
	}
	return append(list, strings.Trim(value, `"`))
}

// wordsOfUnit splits a command into words. It does not support backslashes.
var wordsOfUnit = regexp.MustCompile(`"[^"]*"|\S+`)

// start returns the arguments and the environment of the service.
func (u unit) start(root string) (args, env []string, err error) {
	env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, u.environment...)
	for _, file := range u.files {
		path, optional := strings.CutPrefix(file, "-")
		content, err := os.ReadFile(filepath.Join(root, path))
		if optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		for in := bufio.NewScanner(strings.NewReader(string(content))); in.Scan(); {
			if name, value, found := strings.Cut(strings.TrimSpace(in.Text()), "="); found && !strings.HasPrefix(name, "#") {
				env = append(env, name+"="+strings.Trim(value, `"'`))
			}
		}
	}
	valueOf := func(name string) string {
		for _, variable := range slices.Backward(env) {
			if value, found := strings.CutPrefix(variable, name+"="); found {
				return value
			}
		}
		return ""
	}
	for _, word := range wordsOfUnit.FindAllString(u.command, -1) {
		// If $NAME is a separate word, its value is split into words. The value of ${NAME} is not split.
		if name, isVariable := strings.CutPrefix(word, "$"); isVariable && !strings.HasPrefix(name, "{") {
			args = append(args, strings.Fields(valueOf(name))...)
			continue
		}
		args = append(args, os.Expand(strings.Trim(word, `"`), valueOf))
	}
	if len(args) == 0 {
		return nil, nil, errors.New("it has no ExecStart")
	}
	return args, env, nil
}
