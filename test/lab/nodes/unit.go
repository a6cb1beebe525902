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

// unitFolders are where units are found, the first one wins.
func unitFolders() []string {
	return []string{"etc/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system"}
}

// A unit has the settings of a service's files that the stand-in for systemd supports. It ignores all other settings.
type unit struct {
	// command is ExecStart, with variables.
	command string
	// environment are variables, and files are files with more variables. A file whose name begins with "-" may be
	// missing.
	environment, files []string
	// restarts says that the service is started again when it fails, and always so when it ends without failure, too.
	restarts, always bool
	pause            time.Duration
	// condition is a file without which the service is not started, "" for none.
	condition string
}

// readUnit reads the unit of that name, with its drop-ins, from the root of a host.
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
	return unit{}, fmt.Errorf("unit %s could not be found", name) // the words of systemctl, by which kubeadm knows
}

// read adds what one file says. An empty value resets the setting.
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
		// $NAME as a word of its own is split into words, and ${NAME} is not.
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
