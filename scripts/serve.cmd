@echo off
rem Serves Talekeeper on Windows; installs it first if needed. Python comes from python.org.
py -3 -I "%~dp0launcher.py" serve %*
