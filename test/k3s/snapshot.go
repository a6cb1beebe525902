// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// fullDisk is a file, next to the file "ran", that makes a snapshot fail because of a full disk.
const fullDisk = "full"

// snapshots lists and takes snapshots. Like k3s, it exits with status 0 even if no snapshot was saved.
func snapshots(args []string) error {
	note(args[0], args[1])
	folder := data + "/server/db/snapshots"
	if args[1] == "ls" {
		fmt.Println("Name Location Size Created")
		files, err := os.ReadDir(folder)
		for _, file := range files {
			fmt.Printf("%s file://%s/%s 1 now\n", file.Name(), folder, file.Name())
		}
		return err
	}
	i := slices.Index(args, "--name")
	if i < 0 || args[1] != "save" {
		return fmt.Errorf("the stand-in does not know %v", args)
	}
	if _, err := os.Stat(filepath.Join(set.Out, fullDisk)); err == nil {
		return nil
	}
	name := fmt.Sprintf("%s-node-%d", args[i+1], time.Now().Unix())
	if err := saveSnapshot(filepath.Join(folder, name)); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "time=%q level=info msg=\"Snapshot %s saved.\"\n", time.Now().Format(time.RFC3339), name)
	return nil
}

// saveSnapshot writes a real snapshot of etcd.
func saveSnapshot(path string) error {
	client := &http.Client{Timeout: time.Minute}
	resp, err := client.Post("http://127.0.0.1:2379/v3/maintenance/snapshot", "application/json", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines, written := bufio.NewReaderSize(resp.Body, 1<<20), 0
	for {
		var part struct{ Result struct{ Blob string } }
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			if written == 0 {
				return errors.New("the snapshot is empty")
			}
			return file.Sync()
		} else if err := json.Unmarshal(line, &part); err != nil {
			return err
		}
		blob, err := base64.StdEncoding.DecodeString(part.Result.Blob)
		if err == nil {
			_, err = file.Write(blob)
		}
		if err != nil {
			return err
		}
		written += len(blob)
	}
}
