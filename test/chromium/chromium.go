// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chromium controls a real headless Chromium like a user with a keyboard, using the pipe of its debugging
// protocol.
package chromium

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// Page is the only page of its own browser. Use Open to create a Page.
type Page struct {
	t       testing.TB
	session string
	out     *os.File

	mu       sync.Mutex // guards what follows
	last     int
	waiting  map[int]chan message
	requests []string
	problems []string
	ended    error
}

type message struct {
	ID        int             `json:"id,omitempty"`
	Method    string          `json:"method,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// Open starts a browser with one empty page. It ends with the test. The test is skipped if Chromium is not installed.
// The browser accepts any certificate, because it shows only pages of the test's own servers.
func Open(t testing.TB, scripts bool) *Page {
	t.Helper()
	program := Find(t)
	toBrowser, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, fromBrowser, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(context.WithoutCancel(t.Context()), program, // it ends in its own way below
		"--remote-debugging-pipe", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--ignore-certificate-errors", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--user-data-dir="+t.TempDir(), "about:blank")
	command.ExtraFiles = []*os.File{toBrowser, fromBrowser} // 3 and 4, as it has them
	command.Env = append(os.Environ(), "HOME="+t.TempDir())
	command.WaitDelay = 10 * time.Second
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = toBrowser.Close(), fromBrowser.Close()
	p := &Page{t: t, out: in, waiting: map[int]chan message{}}
	read := make(chan struct{})
	go func() { defer close(read); p.read(out) }()
	t.Cleanup(func() {
		_, _ = in.Write([]byte(`{"id":1000000,"method":"Browser.close"}` + "\x00")) // its own way ends its children, too
		killed := time.AfterFunc(10*time.Second, func() { _ = command.Process.Kill() })
		_ = command.Wait()
		killed.Stop()
		_, _ = in.Close(), out.Close()
		<-read
	})
	p.attach(scripts)
	return p
}

// Find returns the path of an installed Chromium, or skips the test.
func Find(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"chromium-headless-shell", "chromium", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no Chromium is installed: Debian's package is chromium-headless-shell")
	return ""
}

// attach creates the page, and subscribes to its events.
func (p *Page) attach(scripts bool) {
	p.t.Helper()
	var made struct{ TargetID string }
	p.Call("Target.createTarget", map[string]any{"url": "about:blank"}, &made)
	var attached struct{ SessionID string }
	p.Call("Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &attached)
	p.session = attached.SessionID
	for _, domain := range []string{"Page", "Network", "Log", "Runtime", "Accessibility", "Audits"} {
		p.Call(domain+".enable", nil, nil)
	}
	p.Call("Emulation.setScriptExecutionDisabled", map[string]any{"value": !scripts}, nil)
}

// read passes on responses, and records the requests and the errors of the page.
func (p *Page) read(from *os.File) {
	messages := bufio.NewReader(from)
	for {
		raw, err := messages.ReadBytes(0)
		p.mu.Lock()
		if err != nil {
			p.ended = err
			for _, waiting := range p.waiting {
				close(waiting)
			}
			p.waiting = nil
			p.mu.Unlock()
			return
		}
		var m message
		if json.Unmarshal(raw[:len(raw)-1], &m) == nil {
			p.take(m)
		}
		p.mu.Unlock()
	}
}

func (p *Page) take(m message) {
	if waiting := p.waiting[m.ID]; waiting != nil {
		delete(p.waiting, m.ID)
		waiting <- m
		return
	}
	switch m.Method {
	case "Network.requestWillBeSent":
		var sent struct{ Request struct{ URL string } }
		_ = json.Unmarshal(m.Params, &sent) // an empty address fails the test
		p.requests = append(p.requests, sent.Request.URL)
	case "Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Audits.issueAdded":
		p.problems = append(p.problems, m.Method+" "+string(m.Params))
	}
}

// Call calls a method of the protocol, and reads its result.
func (p *Page) Call(method string, params, result any) {
	p.t.Helper()
	if err := p.call(method, params, result); err != nil {
		p.t.Fatalf("%s: %v", method, err)
	}
}

func (p *Page) call(method string, params, result any) error {
	answered := make(chan message, 1)
	p.mu.Lock()
	if p.ended != nil {
		p.mu.Unlock()
		return fmt.Errorf("the browser has ended: %w", p.ended)
	}
	p.last++
	id := p.last
	p.waiting[id] = answered
	p.mu.Unlock()
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	if raw, err = json.Marshal(message{ID: id, Method: method, SessionID: p.session, Params: raw}); err != nil {
		return err
	}
	if _, err := p.out.Write(append(raw, 0)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	select {
	case got, ok := <-answered:
		if !ok {
			return errors.New("the browser has ended")
		}
		if got.Error != nil {
			return errors.New(got.Error.Message)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(got.Result, result)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Go opens a URL.
func (p *Page) Go(address string) {
	p.t.Helper()
	var gone struct{ ErrorText string }
	p.Call("Page.navigate", map[string]any{"url": address}, &gone)
	if gone.ErrorText != "" {
		p.t.Fatalf("open %s: %s", address, gone.ErrorText)
	}
}

// Type types text into the focused element.
func (p *Page) Type(text string) {
	p.t.Helper()
	p.Call("Input.insertText", map[string]any{"text": text}, nil)
}

// Press presses Tab, Enter or Escape.
func (p *Page) Press(key string) {
	p.t.Helper()
	code, text := map[string]int{"Tab": 9, "Enter": 13, "Escape": 27}[key], map[string]string{"Enter": "\r"}[key]
	for _, kind := range []string{"keyDown", "keyUp"} {
		params := map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
		if kind == "keyDown" && text != "" {
			params["text"] = text
		}
		p.Call("Input.dispatchKeyEvent", params, nil)
	}
}

// Element is the description of an element that a screen reader gets.
type Element struct {
	Role, Name, Value string
	Focused           bool
}

// Elements returns the elements that a screen reader finds on the page, in order. An error means that the page is being
// replaced.
func (p *Page) Elements() ([]Element, error) {
	type value struct{ Value any }
	var tree struct {
		Nodes []struct {
			Ignored           bool
			Role, Name, Value value
			Properties        []struct {
				Name  string
				Value value
			}
		}
	}
	if err := p.call("Accessibility.getFullAXTree", nil, &tree); err != nil {
		return nil, err
	}
	text := func(v value) string {
		if v.Value == nil {
			return ""
		}
		return fmt.Sprint(v.Value)
	}
	var all []Element
	for _, node := range tree.Nodes {
		e := Element{Role: text(node.Role), Name: text(node.Name), Value: text(node.Value)}
		for _, property := range node.Properties {
			e.Focused = e.Focused || property.Name == "focused" && property.Value.Value == true
		}
		if !node.Ignored {
			all = append(all, e)
		}
	}
	return all, nil
}

// Requests returns the URLs that the page has requested so far.
func (p *Page) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.requests...)
}

// Problems returns the browser's errors so far, such as violations of the page's policy, and logged messages.
func (p *Page) Problems() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.problems...)
}

// String lists elements for test failures.
func String(elements []Element) string {
	var b strings.Builder
	for _, e := range elements {
		fmt.Fprintf(&b, "%s %q %q focused=%t\n", e.Role, e.Name, e.Value, e.Focused)
	}
	return b.String()
}

// Evaluate runs a script in the page. If the script returns a promise, Evaluate waits for it. The result may be nil.
func (p *Page) Evaluate(script string, result any) {
	p.t.Helper()
	var answer struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	p.Call("Runtime.evaluate", map[string]any{"expression": script, "awaitPromise": true, "returnByValue": true}, &answer)
	if problem := answer.ExceptionDetails; problem != nil {
		p.t.Fatalf("%s: %s %s", script, problem.Text, problem.Exception.Description)
	}
	if result == nil {
		return
	}
	if err := json.Unmarshal(answer.Result.Value, result); err != nil {
		p.t.Fatalf("%s returns %s: %v", script, answer.Result.Value, err)
	}
}
