// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// listener is a TCP socket on which a process accepts connections.
type listener struct {
	address netip.AddrPort
	inode   string
}

// checkListeners returns an error if another machine can connect to a process of the demo.
func (d *demo) checkListeners(context.Context) (string, error) {
	var all []listener
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		content, err := os.ReadFile(table)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the system is not Linux, or it has no IPv6
		}
		if err != nil {
			return "", err
		}
		found, err := parseListeners(content)
		if err != nil {
			return "", fmt.Errorf("read %s: %w", table, err)
		}
		all = append(all, found...)
	}
	if len(all) == 0 {
		return "not checked, this needs Linux", nil
	}
	ours, err := d.sockets()
	if err != nil {
		return "", err
	}
	count := 0
	for _, l := range all {
		name, found := ours[l.inode]
		if !found {
			continue
		}
		if !l.address.Addr().Unmap().IsLoopback() {
			return "", fmt.Errorf("%s listens on %s, where others can reach it: run \"make demo-down\"", name, l.address)
		}
		count++
	}
	return fmt.Sprintf("%d sockets", count), nil
}

// sockets maps the inodes of sockets to the names of the demo's processes that have opened the sockets.
func (d *demo) sockets() (map[string]string, error) {
	var pidFiles []string
	for dir, pattern := range map[string]string{d.files.pids(): "*.pid", d.files.lab(): "clusters/*/pids/*.pid"} {
		found, err := fs.Glob(os.DirFS(dir), pattern) // the path of the folder must not be part of the pattern
		if err != nil {
			return nil, err
		}
		for _, file := range found {
			pidFiles = append(pidFiles, filepath.Join(dir, file))
		}
	}
	sockets := map[string]string{}
	for _, file := range pidFiles {
		pid, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		open, err := filepath.Glob("/proc/" + strings.TrimSpace(string(pid)) + "/fd/*")
		if err != nil {
			return nil, err
		}
		for _, fd := range open {
			target, err := os.Readlink(fd)
			if inode, ok := strings.CutPrefix(target, "socket:["); err == nil && ok { // otherwise, just closed
				sockets[strings.TrimSuffix(inode, "]")] = strings.TrimSuffix(filepath.Base(file), ".pid")
			}
		}
	}
	return sockets, nil
}

// parseListeners parses the format of /proc/net/tcp and /proc/net/tcp6.
func parseListeners(table []byte) ([]listener, error) {
	const listening = "0A"
	var found []listener
	lines := bufio.NewScanner(bytes.NewReader(table))
	lines.Scan() // skip the header line
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 {
			return nil, fmt.Errorf("line %q has fewer than 10 fields", lines.Text())
		}
		if fields[3] != listening {
			continue
		}
		address, err := parseKernelAddress(fields[1])
		if err != nil {
			return nil, err
		}
		found = append(found, listener{address: address, inode: fields[9]})
	}
	return found, lines.Err()
}

// parseKernelAddress parses an address such as "0100007F:1F90". It consists of the 32-bit words of the IP address,
// each in the machine's byte order, and the port.
func parseKernelAddress(text string) (netip.AddrPort, error) {
	host, portText, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	port, portErr := hex.DecodeString(portText)
	if err := errors.Join(err, portErr); err != nil || len(raw)%4 != 0 || len(port) != 2 {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address", text)
	}
	for word := range slices.Chunk(raw, 4) {
		binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
	}
	addr, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address", text)
	}
	return netip.AddrPortFrom(addr, uint16(port[0])<<8|uint16(port[1])), nil
}
