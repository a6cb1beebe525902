// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// keysFile contains the number of the key that encrypts Secrets, and so does keysInEtcd.
	keysFile   = data + "/server/cred/encryption-config.json"
	keysInEtcd = "/stand-in/encryption"
	// passwordFile contains the password of this machine's node. It remains when k3s is stopped.
	passwordFile = "/etc/rancher/node/password"
)

// reconcileKeys compares the key on the disk with the key in the etcd of a machine. k3s does not start if the key on
// the disk is newer, and otherwise uses the key in etcd.
func reconcileKeys(host string) error {
	disk, err := keyOnDisk()
	if err != nil {
		return err
	}
	var stored int
	for range 120 { // etcd starts
		if stored, err = keyInEtcd(host); err == nil {
			break
		}
		<-time.After(500 * time.Millisecond)
	}
	switch {
	case err != nil:
		return err
	case disk > stored && stored > 0:
		return fmt.Errorf("%s newer than datastore and could cause a cluster outage. "+
			"Remove the file(s) from disk and restart to be recreated from datastore", keysFile)
	case stored == 0:
		return setKey(max(disk, 1), host)
	}
	return setKey(stored, "")
}

func keyOnDisk() (int, error) {
	raw, err := os.ReadFile(keysFile)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(raw)))
}

// setKey writes the number of the key to the disk and, unless the machine is empty, to the etcd of a machine.
func setKey(n int, host string) error {
	text := strconv.Itoa(n)
	err := errors.Join(os.MkdirAll(filepath.Dir(keysFile), 0o700), os.WriteFile(keysFile, []byte(text), 0o600))
	if err != nil || host == "" {
		return err
	}
	encode := base64.StdEncoding.EncodeToString
	_, err = kv(host, "put", map[string]string{"key": encode([]byte(keysInEtcd)), "value": encode([]byte(text))})
	return err
}

func keyInEtcd(host string) (int, error) {
	values, err := kv(host, "range", map[string]string{"key": base64.StdEncoding.EncodeToString([]byte(keysInEtcd))})
	if err != nil || len(values) == 0 {
		return 0, err
	}
	return strconv.Atoi(string(values[0]))
}

// kv requests keys and values from the etcd of a machine, through its gateway.
func kv(host, path string, request any) ([][]byte, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Timeout: 10 * time.Second}
	resp, err := client.Post("http://"+host+":2379/v3/kv/"+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("etcd %s: %s %s (%w)", path, resp.Status, raw, err)
	}
	var answer struct{ KVs []struct{ Value []byte } }
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, err
	}
	var values [][]byte
	for _, each := range answer.KVs {
		values = append(values, each.Value)
	}
	return values, nil
}

// encrypt shows and rotates the keys that encrypt Secrets.
func encrypt(what string) error {
	n, err := keyInEtcd("127.0.0.1")
	if err != nil {
		return err
	}
	if what == "rotate-keys" {
		note("rotate-keys")
		return setKey(n+1, "127.0.0.1")
	}
	fmt.Printf("Encryption Status: Enabled\nCurrent Rotation Stage: reencrypt_finished\n * AES-CBC key-%d\n", n)
	return nil
}

func passwordOf(node string) string { return node + ".node-password.k3s" }

// authenticate presents the password of this machine's node to the cluster, which stores the first password of each
// node. A refused server waits forever.
func authenticate(node string) error {
	own, err := os.ReadFile(passwordFile)
	if errors.Is(err, fs.ErrNotExist) {
		own = []byte(rand.Text())
		err = errors.Join(os.MkdirAll(filepath.Dir(passwordFile), 0o755), os.WriteFile(passwordFile, own, 0o600))
	}
	if err != nil {
		return err
	}
	run := func(args ...string) (string, error) {
		out, err := exec.Command(set.Kubectl, append([]string{"--kubeconfig", kubeconfig, "-n", "kube-system"}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	for {
		has, err := run("get", "secret", passwordOf(node), "--ignore-not-found", "-o", "jsonpath={.data.hash}")
		if err == nil && has == "" {
			_, err = run("create", "secret", "generic", passwordOf(node), "--from-literal=hash="+string(own))
			has = base64.StdEncoding.EncodeToString(own)
		}
		switch {
		case err == nil && has == base64.StdEncoding.EncodeToString(own):
			return nil
		case err == nil:
			fmt.Println("Node password rejected, duplicate hostname or contents of '" + passwordFile + "' may not match server node-passwd entry")
		default:
			fmt.Println("node password:", err)
		}
		<-time.After(time.Second)
	}
}
