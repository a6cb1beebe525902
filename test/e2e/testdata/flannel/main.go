// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package main is the only program in the image of Flannel's CNI plugin, whose module cannot be downloaded from a Go
// proxy. As "cp", it installs itself. As "flannel", it is a CNI plugin that calls the plugin "bridge" with the subnet
// that Flannel has assigned to the node.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// subnetFile is the file in which Flannel stores the node's subnet.
const subnetFile = "/run/flannel/subnet.env"

func main() {
	run := plugin
	if filepath.Base(os.Args[0]) == "cp" {
		run = install
	}
	err := run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		os.Exit(exit.ExitCode()) // the plugin has printed its error
	}
	if err != nil {
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": "1.0.0", "code": 100, "msg": err.Error()})
		os.Exit(1)
	}
}

// install copies a file: cp -f FROM TO.
func install() error {
	if len(os.Args) != 4 {
		return errors.New("usage: cp -f FROM TO")
	}
	content, err := os.ReadFile(os.Args[2])
	if err != nil {
		return err
	}
	part := os.Args[3] + ".part"
	if err := os.WriteFile(part, content, 0o755); err != nil {
		return err
	}
	return os.Rename(part, os.Args[3])
}

// plugin serves a command of the container runtime.
func plugin() error {
	request, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	if os.Getenv("CNI_COMMAND") == "VERSION" {
		_, err := fmt.Println(`{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}`)
		return err
	}
	body, err := delegated(request)
	if err != nil {
		return err
	}
	bridge := exec.Command(filepath.Join(os.Getenv("CNI_PATH"), "bridge"))
	bridge.Stdin, bridge.Stdout, bridge.Stderr = bytes.NewReader(body), os.Stdout, os.Stderr
	return bridge.Run()
}

// delegated returns the configuration of the plugin "bridge".
func delegated(request []byte) ([]byte, error) {
	var config struct {
		CNIVersion string         `json:"cniVersion"`
		Name       string         `json:"name"`
		Delegate   map[string]any `json:"delegate"`
	}
	if err := json.Unmarshal(request, &config); err != nil {
		return nil, err
	}
	file, err := os.ReadFile(subnetFile)
	if err != nil {
		return nil, err
	}
	settings := map[string]string{}
	for _, line := range strings.Fields(string(file)) {
		key, value, _ := strings.Cut(line, "=")
		settings[key] = value
	}
	subnet, err := netip.ParsePrefix(settings["FLANNEL_SUBNET"])
	if err != nil {
		return nil, err
	}
	mtu, err := strconv.Atoi(settings["FLANNEL_MTU"])
	if err != nil {
		return nil, err
	}
	all := config.Delegate
	if all == nil {
		all = map[string]any{}
	}
	all["cniVersion"], all["name"], all["type"], all["mtu"] = config.CNIVersion, config.Name, "bridge", mtu
	all["ipMasq"] = settings["FLANNEL_IPMASQ"] != "true"
	all["ipam"] = map[string]any{
		"type": "host-local", "ranges": [][]map[string]any{{{"subnet": subnet.Masked().String()}}},
		"routes": []map[string]any{{"dst": settings["FLANNEL_NETWORK"]}},
	}
	return json.Marshal(all)
}
