@echo off
rem Runs the tests on Windows; installs what they need first. Python comes from python.org.
py -3 -I "%~dp0launcher.py" test %*
